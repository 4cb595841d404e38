"""Gives the files of a workspace to the uid of the next run, and measures them.

Consecutive runs of a task may have different uids, and the service itself writes files in between. So before a run the
service gives everything in the workspace to the run's uid. A hostile program may leave symbolic links, hard links and
deep trees. So the walk opens each directory relative to its parent's descriptor, never follows a link, and has limits
for depth and entries.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.tools.sandbox.permissions import open_directory

MAX_DEPTH = 64
MAX_ENTRIES = 200_000
_READ_AND_ENTER = stat.S_IRUSR | stat.S_IXUSR
_GONE_ERRORS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
)  # the entry is gone, or was replaced by another kind of file


@dataclass(frozen=True, slots=True)
class Usage:
    """The disk space and the number of entries. `complete` is False when the walk did not visit everything."""

    disk_bytes: int
    entries: int
    complete: bool

    def exceeds(self, before: Usage, max_bytes: int, max_entries: int) -> bool:
        """Whether the workspace is larger than its limits and larger than before the run, or cannot be measured."""
        return (
            self.disk_bytes > max(max_bytes, before.disk_bytes)
            or self.entries > max(max_entries, before.entries)
            or not self.complete  # in an incomplete walk, additions would not be noticed
        )


NOTHING = Usage(0, 0, complete=True)


@dataclass(frozen=True, slots=True)
class _Entry:
    parent_fd: int
    name: str
    status: os.stat_result


class _Walk:
    """A walk over all entries below a directory. `complete` is False when a limit or an error hid entries from it."""

    def __init__(self) -> None:
        self.entries = 0
        self.complete = True
        self._counted: set[tuple[int, int]] = set()

    def new_bytes(self, status: os.stat_result) -> int:
        """Returns the disk space of an entry in bytes. A file with several names is counted once."""
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            file = (status.st_dev, status.st_ino)
            if file in self._counted:
                return 0
            self._counted.add(file)
        return status.st_blocks * 512

    def below(self, directory_fd: int, depth: int = 0) -> Iterator[_Entry]:
        """Yields the entries below a directory, each with the descriptor of its parent."""
        for name in self._names(directory_fd):
            status = self._status(name, directory_fd)
            if status is None:
                continue
            self.entries += 1
            if self.entries > MAX_ENTRIES or depth > MAX_DEPTH:
                self.complete = False
                return
            yield _Entry(directory_fd, name, status)
            if stat.S_ISDIR(status.st_mode):
                yield from self._enter(name, directory_fd, depth + 1)

    def _enter(self, name: str, directory_fd: int, depth: int) -> Iterator[_Entry]:
        try:
            inner_fd = open_directory(name, directory_fd, _READ_AND_ENTER)
        except OSError as error:
            self._note_error(error)
            return
        try:
            yield from self.below(inner_fd, depth)
        finally:
            os.close(inner_fd)

    def _names(self, directory_fd: int) -> list[str]:
        try:
            return os.listdir(directory_fd)
        except OSError as error:
            self._note_error(error)
            return []

    def _status(self, name: str, directory_fd: int) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        except OSError as error:
            self._note_error(error)
            return None

    def _note_error(self, error: OSError) -> None:
        """Marks the walk as incomplete, unless the entry is gone: an unreadable entry may have any size."""
        if error.errno not in _GONE_ERRORS:
            self.complete = False


def identity(workspace: Path) -> tuple[int, int]:
    """Returns device and inode of the workspace, which identify it under any path.

    Raises NotADirectoryError for a link or a file.
    """
    status = workspace.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"the workspace {workspace} is not a directory")
    return status.st_dev, status.st_ino


def take_over(workspace: Path | None, uid: int | None) -> Usage:
    """Prepares a workspace for a run and returns its usage. None as `uid` is the service's uid: no owner changes.

    Raises OSError.
    """
    if workspace is None:
        return NOTHING
    return measure(workspace) if uid is None else hand_over(workspace, uid)


def hand_over(workspace: Path, uid: int) -> Usage:
    """Gives everything in the workspace to `uid` and to the group of the same number, and returns the usage.

    Only for a service that runs as root. Entries beyond the walk's limits keep their owner. Raises OSError.
    """
    directory_fd = open_directory(str(workspace), None, _READ_AND_ENTER)
    try:
        if os.fstat(directory_fd).st_uid != uid:
            os.fchown(directory_fd, uid, uid)
        walk, total = _Walk(), 0
        for entry in walk.below(directory_fd):
            total += walk.new_bytes(entry.status)
            if entry.status.st_uid != uid and not _is_foreign_hard_link(entry.status):
                with suppress(FileNotFoundError):  # renamed or removed since: file tools and other runs write here, too
                    os.chown(entry.name, uid, uid, dir_fd=entry.parent_fd, follow_symlinks=False)
        return Usage(total, walk.entries, walk.complete)
    finally:
        os.close(directory_fd)


def measure(workspace: Path) -> Usage:
    """Returns the usage of the workspace. Files that a program deletes meanwhile are not counted. Raises OSError."""
    directory_fd = open_directory(str(workspace), None, _READ_AND_ENTER)
    try:
        walk = _Walk()
        total = sum(walk.new_bytes(entry.status) for entry in walk.below(directory_fd))
        return Usage(total, walk.entries, walk.complete)
    finally:
        os.close(directory_fd)


def _is_foreign_hard_link(status: os.stat_result) -> bool:
    """Whether the file belongs to root and has a second name.

    The other name may be anywhere on the host, so the file must keep its owner.
    """
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and status.st_uid == 0
