"""A task's files between runs: who owns them, and how much they are.

Runs of one task may get different uids one after another, and the service itself writes files in between. Before a
run everything in the workspace is given to the run's uid. A program leaves symbolic links, hard links and deep trees
behind on purpose, so the walk goes from descriptor to descriptor, never follows a link, and is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.tools.sandbox.permissions import open_directory

MAX_DEPTH = 64
MAX_ENTRIES = 200_000
_TO_LOOK_INTO = stat.S_IRUSR | stat.S_IXUSR
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})  # or something else by now


@dataclass(frozen=True, slots=True)
class Usage:
    """Disk space and number of entries. `complete` is False when the tree is beyond what a walk visits."""

    disk_bytes: int
    entries: int
    complete: bool

    def exceeds(self, before: Usage, max_bytes: int, max_entries: int) -> bool:
        """Whether the workspace has outgrown its bounds, or what it already was when they were set."""
        return (
            self.disk_bytes > max(max_bytes, before.disk_bytes)
            or self.entries > max(max_entries, before.entries)
            or not self.complete  # whatever it was before: nobody can tell what is added to it
        )


NOTHING = Usage(0, 0, complete=True)


@dataclass(frozen=True, slots=True)
class _Entry:
    parent_fd: int
    name: str
    status: os.stat_result


class _Walk:
    """All entries below a directory, each with the descriptor of its parent; complete unless a bound was met."""

    def __init__(self) -> None:
        self.entries = 0
        self.complete = True
        self._counted: set[tuple[int, int]] = set()

    def new_bytes(self, status: os.stat_result) -> int:
        """The space that an entry takes; a file of several names takes it once."""
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            file = (status.st_dev, status.st_ino)
            if file in self._counted:
                return 0
            self._counted.add(file)
        return status.st_blocks * 512

    def below(self, directory_fd: int, depth: int = 0) -> Iterator[_Entry]:
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
                yield from self._inside(name, directory_fd, depth + 1)

    def _inside(self, name: str, directory_fd: int, depth: int) -> Iterator[_Entry]:
        try:
            inner = open_directory(name, directory_fd, _TO_LOOK_INTO)
        except OSError as error:
            self._not_seen(error)
            return
        try:
            yield from self.below(inner, depth)
        finally:
            os.close(inner)

    def _names(self, directory_fd: int) -> list[str]:
        try:
            return os.listdir(directory_fd)
        except OSError as error:
            self._not_seen(error)
            return []

    def _status(self, name: str, directory_fd: int) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        except OSError as error:
            self._not_seen(error)
            return None

    def _not_seen(self, error: OSError) -> None:
        """What is gone is nothing; what is there and cannot be looked at may be anything."""
        if error.errno not in _GONE:
            self.complete = False


def identity(workspace: Path) -> tuple[int, int]:
    """Which directory this is, whatever it is called. Raises NotADirectoryError for a link or a file."""
    status = workspace.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"the workspace {workspace} is not a directory")
    return status.st_dev, status.st_ino


def take_over(workspace: Path | None, uid: int | None) -> Usage:
    """The workspace, if there is one, becomes the uid's, if that is not the service's own; how much is in it."""
    if workspace is None:
        return NOTHING
    return measure(workspace) if uid is None else hand_over(workspace, uid)


def hand_over(workspace: Path, uid: int) -> Usage:
    """Give everything in the workspace to `uid` (and the group of the same number); say how much it is.

    Only for a service that is root. Entries beyond the walk's bounds keep their owner.
    """
    directory_fd = open_directory(str(workspace), None, _TO_LOOK_INTO)
    try:
        if os.fstat(directory_fd).st_uid != uid:
            os.fchown(directory_fd, uid, uid)
        walk, total = _Walk(), 0
        for entry in walk.below(directory_fd):
            total += walk.new_bytes(entry.status)
            if entry.status.st_uid != uid and not _is_foreign_hard_link(entry.status):
                os.chown(entry.name, uid, uid, dir_fd=entry.parent_fd, follow_symlinks=False)
        return Usage(total, walk.entries, walk.complete)
    finally:
        os.close(directory_fd)


def measure(workspace: Path) -> Usage:
    """How much the workspace holds. A program may be changing it meanwhile: what disappears is not counted."""
    directory_fd = open_directory(str(workspace), None, _TO_LOOK_INTO)
    try:
        walk = _Walk()
        total = sum(walk.new_bytes(entry.status) for entry in walk.below(directory_fd))
        return Usage(total, walk.entries, walk.complete)
    finally:
        os.close(directory_fd)


def _is_foreign_hard_link(status: os.stat_result) -> bool:
    """A file of root's with a second name: that other name may be anywhere, so it is not given away."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and status.st_uid == 0
