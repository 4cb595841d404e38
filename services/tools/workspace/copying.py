"""Copies a workspace for a fork: the copy is complete, or it does not exist.

The copy has a name that no task has until it is on disk, and is renamed then. The sweep of workspaces removes what a
copy that died has left. Programs may write to the other workspace meanwhile: a file that is written during the copy may
be copied halfway.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final
from uuid import uuid4

from services.tools.workspace.beneath import DIRECTORY, FILE, open_beneath, walk
from services.tools.workspace.bounds import DISK_FULL, Bounds
from services.tools.workspace.directories import TEMPORARY, Workspaces, closing_after
from services.tools.workspace.removal import remove_some
from tenure.domain.errors import Unavailable, WrongState

# One file's content into another: shared blocks where the filesystem can, holes left as holes.

_PIECE_BYTES: Final = 8 * 1024 * 1024
_FICLONE: Final = 0x40049409
_NOT_HERE: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
_LINUX: Final = sys.platform == "linux"


def copy_content(source: int, target: int, size_bytes: int, check: Callable[[], None]) -> None:
    """Copies up to `size_bytes`, even if the source grows. Calls `check`, which may raise, between pieces.

    Raises OSError.
    """
    if _LINUX and _share(source, target):
        os.ftruncate(target, min(size_bytes, os.fstat(target).st_size))
        return
    os.ftruncate(target, size_bytes)
    for start, end in _filled(source, size_bytes):
        at = start
        while at < end:
            check()
            copied = _copy_some(source, target, at, min(_PIECE_BYTES, end - at))
            if copied == 0:
                return  # it was cut short meanwhile
            at += copied


def _share(source: int, target: int) -> bool:
    """Lets the target share the source's blocks on disk. Returns whether the file system supports it."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _filled(source: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges that contain data, and not the holes."""
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            start, end = at, size_bytes
        yield start, min(end, size_bytes)
        at = end


def _copy_some(source: int, target: int, at: int, most: int) -> int:
    if _LINUX:
        try:
            return os.copy_file_range(source, target, most, at, at)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    content = os.pread(source, min(most, 1024 * 1024), at)
    written = 0
    while written < len(content):
        written += os.pwrite(target, content[written:], at + written)
    return len(content)


UNFINISHED: Final = ".copy-"
"""The prefix of the names of copies that are not complete."""

_MAX_DEPTH: Final = 64
_GONE: Final = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL, errno.EEXIST})
"""The errors of an entry that was removed, replaced, or renamed and listed twice since the directory was read."""


@dataclass(slots=True)
class CopiedFiles:
    """The size of a copy, measured as workspaces are."""

    files: int = 0
    disk_bytes: int = 0
    left_out: int = 0


class CopyStopped(Exception):  # noqa: N818  not an error: the caller has gone away
    """The copy was given up."""


def copy_workspace(
    workspaces: Workspaces, root: Path, tenant: str, from_task_id: str, task_id: str, bounds: Bounds, stopped: Event
) -> CopiedFiles | None:
    """Copies a workspace. Returns None if it was copied before; a task without files has an empty copy. Blocks.

    Raises WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE), Unavailable (STORAGE_FULL) and CopyStopped, and leaves
    nothing of the copy then.
    """
    with suppress(FileNotFoundError), _reporting_errors(), workspaces.tenant_opened(tenant) as parent:
        if _is_there(task_id, parent):
            return None
        with closing_after(open_beneath((from_task_id,), DIRECTORY, parent)) as source:
            name = f"{UNFINISHED}{task_id}-{uuid4().hex}"
            try:
                copied = _copy_as(name, source, parent, bounds, stopped)
                return copied if _put_in_place(name, task_id, parent) else None
            finally:
                _remove(root / tenant / name)
    return CopiedFiles()


def _copy_as(name: str, source: int, parent: int, bounds: Bounds, stopped: Event) -> CopiedFiles:
    os.mkdir(name, 0o700, dir_fd=parent)
    with closing_after(open_beneath((name,), DIRECTORY, parent)) as target:
        copying = _Copying(target, bounds, stopped)
        copying.directory(source, target, ())
        os.fchmod(target, 0o755)
        _write_to_disk(target)
        return copying.copied


def _put_in_place(name: str, task_id: str, parent: int) -> bool:
    """Gives the copy the task's name. Returns False if another copy has it already."""
    try:
        os.rename(name, task_id, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    os.fsync(parent)
    return True


class _Copying:
    """A copy under way. `target`: its top directory, which no other user can enter."""

    def __init__(self, target: int, bounds: Bounds, stopped: Event) -> None:
        self._target, self._bounds, self._stopped = target, bounds, stopped
        self._linked: dict[tuple[int, int], tuple[str, ...]] = {}
        self.copied = CopiedFiles()

    def directory(self, source: int, target: int, above: tuple[str, ...]) -> None:
        if len(above) > _MAX_DEPTH:
            raise _too_much(f"directories more than {_MAX_DEPTH} deep")
        for name in os.listdir(source):
            self._check()
            with suppress(_Gone), _unless_gone("/".join((*above, name))):
                status = os.stat(name, dir_fd=source, follow_symlinks=False)
                self._entry(name, status, source, target, above)

    def _entry(self, name: str, status: os.stat_result, source: int, target: int, above: tuple[str, ...]) -> None:
        if stat.S_ISDIR(status.st_mode):
            self._count(status)
            self._inner(name, source, target, (*above, name))
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            self._count(status)
        elif not stat.S_ISREG(status.st_mode):
            self.copied.left_out += 1
        elif not name.startswith(TEMPORARY):  # a file that is being written, or was when its writer died
            self._file(name, source, target, above)

    def _inner(self, name: str, source: int, target: int, path: tuple[str, ...]) -> None:
        with closing_after(open_beneath((name,), DIRECTORY, source)) as inside:
            os.mkdir(name, 0o700, dir_fd=target)
            with closing_after(open_beneath((name,), DIRECTORY, target)) as made:
                self.directory(inside, made, path)
                _take_over(os.fstat(inside), made)

    def _file(self, name: str, source: int, target: int, above: tuple[str, ...]) -> None:
        with closing_after(open_beneath((name,), os.O_RDONLY | FILE, source)) as content:
            status = os.fstat(content)
            if not stat.S_ISREG(status.st_mode):
                self.copied.left_out += 1
            elif not self._link(name, status, target, above):
                self._count(status)
                with closing_after(
                    os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE, 0o600, dir_fd=target)
                ) as made:
                    copy_content(content, made, status.st_size, self._check)
                    _take_over(status, made)

    def _link(self, name: str, status: os.stat_result, target: int, above: tuple[str, ...]) -> bool:
        """Links the name to a file that was copied under another name. Returns False if there is no such file."""
        if status.st_nlink < 2:
            return False
        key = status.st_dev, status.st_ino
        first = self._linked.setdefault(key, (*above, name))
        if first == (*above, name):
            return False
        # One directory after the other: all names together may be longer than the kernel allows for a path.
        with closing_after(walk((*first[:-1], "."), DIRECTORY, self._target)) as directory:
            os.link(first[-1], name, src_dir_fd=directory, dst_dir_fd=target)
        self._count_entry()
        return True

    def _count(self, status: os.stat_result) -> None:
        self.copied.disk_bytes += status.st_blocks * 512
        if self.copied.disk_bytes > self._bounds.max_bytes:
            raise _too_much(f"more than {self._bounds.max_bytes} bytes")
        self._count_entry()

    def _count_entry(self) -> None:
        self.copied.files += 1
        if self.copied.files > self._bounds.max_files:
            raise _too_much(f"more than {self._bounds.max_files} files")

    def _check(self) -> None:
        if self._stopped.is_set():
            raise CopyStopped


class _Gone(Exception):  # noqa: N818  not an error
    """A program has removed the entry."""


@contextmanager
def _unless_gone(path: str) -> Iterator[None]:
    """Turns the errors of the file system about one entry into _Gone and WrongState. Raises OSError for others."""
    try:
        yield
    except PermissionError as error:
        message = f"{path!r} is closed to the tool service: open it (chmod), or fork without files"
        raise WrongState(message, reason="WORKSPACE_UNREADABLE") from error
    except BlockingIOError as error:
        message = f"{path!r} is held by a program (a lease): fork again later, or without files"
        raise WrongState(message, reason="WORKSPACE_UNREADABLE") from error
    except OSError as error:
        if error.errno in _GONE:
            raise _Gone from error
        raise


@contextmanager
def _reporting_errors() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise WrongState("the workspace is closed to the tool service", reason="WORKSPACE_UNREADABLE") from error
    except OSError as error:
        if error.errno in DISK_FULL:
            message = "there is no room on the tools' disk for a copy of the workspace"
            raise Unavailable(message, reason="STORAGE_FULL", retry_after_seconds=30.0) from error
        raise


def _too_much(what: str) -> WrongState:
    return WrongState(f"the workspace holds {what}, so that it cannot be copied", reason="WORKSPACE_LIMIT")


def _take_over(status: os.stat_result, made: int) -> None:
    """Copies permissions, except setuid and setgid, and times. The first program that runs there becomes the owner."""
    os.fchmod(made, status.st_mode & 0o777)
    os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))


def _is_there(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write_to_disk(descriptor: int) -> None:
    """Writes the whole file system to disk: to sync thousands of files one by one would take minutes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _remove(path: Path) -> None:
    """Removes a copy that did not get the task's name."""
    while not remove_some(path):
        pass
