"""The tasks' directories, `<root>/<tenant>/<task>`, and a way in that nothing inside can lead astray.

Agents' programs write there what they like: symbolic links, pipes, deep trees. So every path is walked from directory
to directory by descriptor, no component may be a link, and only regular files are opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from services.tools.tool import ToolFailed
from tenure.domain.errors import PermissionDenied

MAX_DEPTH: Final = 32
_LONGEST_PATH: Final = 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not keep us waiting for its other end
_PLAIN_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")


class Workspaces:
    """All tasks' directories. Its methods block: call them in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def directory(self, tenant: str, task_id: str) -> Path:
        """The task's directory, made when it is not there. Its path holds no link below the root."""
        with self.opened(tenant, task_id):
            return self._root / tenant / task_id

    @contextmanager
    def opened(self, tenant: str, task_id: str) -> Iterator[int]:
        """A descriptor of the task's directory. Raises PermissionDenied for names that are no plain ones."""
        if not (_PLAIN_NAME.fullmatch(tenant) and _PLAIN_NAME.fullmatch(task_id)):
            raise PermissionDenied("this token's tenant or task cannot name a workspace", reason="WRONG_RESOURCE")
        self._root.mkdir(parents=True, exist_ok=True)
        with _closing(os.open(self._root, _DIRECTORY & ~os.O_NOFOLLOW)) as root:
            _make_directory(tenant, root)
            with _closing(os.open(tenant, _DIRECTORY, dir_fd=root)) as parent:
                _make_directory(task_id, parent)
                with _closing(os.open(task_id, _DIRECTORY, dir_fd=parent)) as workspace:
                    yield workspace


def split_path(path: str) -> tuple[str, ...]:
    """The components of a path inside the workspace, () for the workspace itself. Raises ToolFailed."""
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ToolFailed(f"{path!r} is not a path inside the workspace: use a relative one without '..'.", "BAD_PATH")
    if len(path) > _LONGEST_PATH or len(parts) > MAX_DEPTH or any(len(part.encode()) > 255 for part in parts):
        raise ToolFailed("The path is too long.", "BAD_PATH")
    return parts


@contextmanager
def entered(workspace: int, directories: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
    """The directory reached through these names, none of them a link. Raises OSError."""
    opened: list[int] = []
    current = workspace
    try:
        for name in directories:
            if make:
                _make_directory(name, current)
            current = os.open(name, _DIRECTORY, dir_fd=current)
            opened.append(current)
            if make:
                give_to_owner(current, workspace)
        yield current
    finally:
        for descriptor in reversed(opened):
            os.close(descriptor)


def open_to_read(name: str, directory: int) -> int:
    """A descriptor of a regular file. Raises OSError, and ToolFailed for anything else than a file."""
    descriptor = os.open(name, os.O_RDONLY | _FILE, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolFailed(f"{name!r} is not a regular file.", "NOT_A_FILE")
    return descriptor


def create(name: str, directory: int) -> int:
    """A descriptor of a new, empty file in the place of whatever has this name. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o644, dir_fd=directory)


def write_file(name: str, content: bytes, directory: int, workspace: int, *, temporary: str) -> None:
    """Writes a file in the place of whatever has this name. Raises OSError.

    Under a name of the call's own, then renamed: nobody sees half a file, and a run again clears up after the one that
    died.
    """
    try:
        with os.fdopen(create(temporary, directory), "wb") as file:
            give_to_owner(file.fileno(), workspace)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)  # on a full disk it is what is in the way
        raise


def give_to_owner(descriptor: int, workspace: int) -> None:
    """A service that is root makes files for whom the workspace was given to: its programs may change them."""
    owner, made = os.fstat(workspace), os.fstat(descriptor)
    if os.geteuid() == 0 and made.st_uid == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _make_directory(name: str, parent: int) -> None:
    with suppress(FileExistsError):  # whatever it is, it is opened as a directory next
        os.mkdir(name, 0o755, dir_fd=parent)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
