"""Makes the workspace of a future task: copies another one for a fork, or puts the files of a submit into it. Under the
task's name it is either complete or absent; so is the directory of a message's files.

The copy is made under a name that no task has, is written to disk, and is then renamed. The sweep of workspaces removes
the rest of a copy whose process died. The source is only read. Its programs may be writing meanwhile, so a file that is
being written may be copied halfway.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final
from uuid import uuid4

from services.tools.sandbox.permissions import DIRECTORY
from services.tools.tool import ToolFailure
from services.tools.workspace.beneath import FILE, open_beneath, walk
from services.tools.workspace.bounds import DISK_FULL, Bounds
from services.tools.workspace.directories import (
    TEMPORARY,
    Workspaces,
    closing_after,
    entered,
    give_to_owner,
    write_file,
)
from services.tools.workspace.removal import remove_some
from tenure.domain.errors import Unavailable, WrongState
from tenure.domain.images import MAX_FILE_DEPTH, MESSAGES_DIRECTORY, submitted_file
from tenure.domain.texts import KEPT_DIRECTORY

# Copies the content of one file: the files share blocks where the filesystem supports it, and holes remain holes.

_PIECE_BYTES: Final = 8 * 1024 * 1024
_FICLONE: Final = 0x40049409
_NOT_HERE: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
_LINUX: Final = sys.platform == "linux"


def copy_content(source: int, target: int, size_bytes: int, check: Callable[[], None]) -> None:
    """Copies the first `size_bytes`, even if the source grows. `check` is called between pieces, and may raise.

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
                return  # a program truncated the source meanwhile
            at += copied


def _share(source: int, target: int) -> bool:
    """Makes both files share their blocks on disk until one is written. Returns whether that worked."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _filled(source: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each part that is not a hole."""
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
"""The names of incomplete copies begin with this."""

_MAX_DEPTH: Final = 64
_GONE: Final = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL, errno.EEXIST})
"""The errors of an entry that a program removed, replaced or renamed after it was listed."""


@dataclass(slots=True)
class CopiedFiles:
    """The size of what was copied, measured like a workspace."""

    files: int = 0
    disk_bytes: int = 0
    left_out: int = 0


class CopyStopped(Exception):  # noqa: N818  no error: the caller no longer waits for the copy
    """The copy was stopped because its caller went away."""


def copy_workspace(
    workspaces: Workspaces, root: Path, tenant: str, from_task_id: str, task_id: str, bounds: Bounds, stopped: Event
) -> CopiedFiles | None:
    """Copies a task's workspace, or nothing if the task has no files. Returns None if it was copied before. Blocks.

    Raises WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE), Unavailable (STORAGE_FULL), CopyStopped, and leaves no
    files then.
    """
    with suppress(FileNotFoundError), _reporting_errors(), workspaces.tenant_opened(tenant) as parent:
        if _is_there(task_id, parent):
            return None
        with closing_after(open_beneath((from_task_id,), DIRECTORY, parent)) as source:
            name = f"{UNFINISHED}{task_id}-{uuid4().hex}"
            try:
                copied = _copy_as(name, source, parent, bounds, stopped)
                return copied if _put_in_place(name, parent, task_id, parent) else None
            finally:
                _remove(root / tenant / name)
    return CopiedFiles()


def put_files(
    workspaces: Workspaces,
    root: Path,
    tenant: str,
    task_id: str,
    files: Mapping[str, bytes],
    bounds: Bounds,
    message: str = "",
) -> None:
    """Puts files into the workspace of a future task, unless it is there; or into the directory of a message.

    Images are also kept under their digests. Blocks. Raises WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE),
    Unavailable (STORAGE_FULL), and leaves none of the files then.
    """
    images = (submitted_file(path, content).image for path, content in files.items())
    kept = {image.kept.path: content for image, content in zip(images, files.values(), strict=True) if image}
    content_bytes = sum(map(len, files.values())) + sum(map(len, kept.values()))
    if content_bytes > bounds.max_bytes:
        have = f"the files, with copies of images, have {content_bytes} bytes"
        text = f"{have}; a workspace may have {bounds.max_bytes}"
        raise WrongState(text, reason="WORKSPACE_LIMIT")
    with _reporting_errors(), workspaces.tenant_opened(tenant, make=True) as parent:
        above = root / tenant
        if not message:
            _put_as(task_id, parent, {**files, **kept}, parent, above)
            return
        with _reporting_hindrances(), workspaces.opened(tenant, task_id) as workspace:
            bounds.check_room(above / task_id, content_bytes, MAX_FILE_DEPTH * len(files) + len(kept) + 3)
            _write(kept, workspace, workspace)
            with entered(workspace, (MESSAGES_DIRECTORY,), make=True) as place:
                _put_as(message, place, files, parent, above, owner=workspace)


@contextmanager
def _reporting_hindrances() -> Iterator[None]:
    """Reports what the agent's programs did to a workspace, so that it takes no more files."""
    try:
        yield
    except ToolFailure as failure:
        raise WrongState(failure.message, reason=failure.detail) from failure
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP, errno.EISDIR}:
            names = f"{MESSAGES_DIRECTORY!r} or {KEPT_DIRECTORY!r}"
            text = f"{names} in the workspace is not a directory: the agent has to remove it before files can come"
            raise WrongState(text, reason="WORKSPACE_UNREADABLE") from error
        raise


def _put_as(
    name: str, place: int, files: Mapping[str, bytes], parent: int, above: Path, owner: int | None = None
) -> None:
    """Makes a directory with these files, unless it is there: complete or not at all."""
    if _is_there(name, place):
        return
    unfinished = f"{UNFINISHED}{name}-{uuid4().hex}"
    try:
        os.mkdir(unfinished, 0o700, dir_fd=parent)
        with closing_after(open_beneath((unfinished,), DIRECTORY, parent)) as target:
            if owner is not None:
                give_to_owner(target, owner)
            _write(files, target, target)
            os.fchmod(target, 0o755)
            _write_to_disk(target)
        _put_in_place(unfinished, parent, name, place)
    finally:
        _remove(above / unfinished)


def _write(files: Mapping[str, bytes], directory: int, workspace: int) -> None:
    for path, content in files.items():
        *above, last = path.split("/")
        with entered(directory, tuple(above), make=True) as inside:
            write_file(last, content, inside, workspace, temporary=f"{TEMPORARY}{uuid4().hex}")


def _copy_as(name: str, source: int, parent: int, bounds: Bounds, stopped: Event) -> CopiedFiles:
    os.mkdir(name, 0o700, dir_fd=parent)
    with closing_after(open_beneath((name,), DIRECTORY, parent)) as target:
        copying = _Copying(target, bounds, stopped)
        copying.directory(source, target, ())
        os.fchmod(target, 0o755)
        _write_to_disk(target)
        return copying.copied


def _put_in_place(unfinished: str, parent: int, name: str, place: int) -> bool:
    """Gives the copy its name. Returns False if another copy has it already."""
    try:
        os.rename(unfinished, name, src_dir_fd=parent, dst_dir_fd=place)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    os.fsync(place)
    return True


class _Copying:
    """One copy in progress. `target`: its top directory, which no other process can enter."""

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
        elif not name.startswith(TEMPORARY):  # a temporary file of a writer that still writes or died
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
        """Links the name if it is another name of a file that was copied already. Returns whether it is."""
        if status.st_nlink < 2:
            return False
        key = status.st_dev, status.st_ino
        first = self._linked.setdefault(key, (*above, name))
        if first == (*above, name):
            return False
        # Walks one directory after the other, because the path as a whole may be longer than the kernel accepts.
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


class _Gone(Exception):  # noqa: N818  no error: a program removed it
    """The entry does not exist any more."""


@contextmanager
def _unless_gone(path: str) -> Iterator[None]:
    """Translates the errors of one entry. Raises _Gone, WrongState, OSError."""
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
        message = "the workspace is closed to the tool service: fork without files"
        raise WrongState(message, reason="WORKSPACE_UNREADABLE") from error
    except OSError as error:
        if error.errno in DISK_FULL:
            message = "the disk of the tool service has no room for a copy of the workspace"
            raise Unavailable(message, reason="STORAGE_FULL", retry_after_seconds=30.0) from error
        raise


def _too_much(what: str) -> WrongState:
    message = f"the workspace has {what}, so it cannot be copied: delete files, or fork without files"
    return WrongState(message, reason="WORKSPACE_LIMIT")


def _take_over(status: os.stat_result, made: int) -> None:
    """Copies the times and the permissions without set-uid bits. The files get the uid of the first program."""
    os.fchmod(made, status.st_mode & 0o777)
    os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))


def _is_there(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write_to_disk(descriptor: int) -> None:
    """Writes the whole filesystem to disk: to write thousands of files one by one would take minutes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _remove(path: Path) -> None:
    """Removes a copy that did not get its name."""
    while not remove_some(path):
        pass
