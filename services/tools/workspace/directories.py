"""Opens the tasks' directories, `<root>/<tenant>/<task>`, and the files in them.

Agents' programs write there what they like: symbolic links, pipes, deep trees. So paths are opened only below a
descriptor, no component may be a link (beneath.py), and only regular files are read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from services.tools.sandbox.permissions import DIRECTORY, open_directory
from services.tools.tool import ToolFailure
from services.tools.workspace.beneath import FILE, open_beneath
from tenure.domain.errors import PermissionDenied

MAX_DEPTH: Final = 32
TEMPORARY: Final = ".tenure-"
"""The names of files that are being written begin with this."""

_LONGEST_PATH: Final = 1024
_OPEN_TO_US: Final = 0o700
"""The permissions that the service needs. A program may have removed them."""
_PLAIN_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")


class Workspaces:
    """The directories of all tasks. Its methods block: call them in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def directory(self, tenant: str, task_id: str) -> Path:
        """Returns the path of the task's directory, and makes the directory if needed. No link is below the root."""
        with self.opened(tenant, task_id):
            return self._root / tenant / task_id

    @contextmanager
    def opened(self, tenant: str, task_id: str) -> Iterator[int]:
        """Yields a descriptor of the task's directory, and makes the directory if needed.

        Raises PermissionDenied if a name is not plain.
        """
        with self.tenant_opened(tenant, make=True) as parent:
            _make_directory(_plain(task_id), parent)
            with closing_after(open_directory(task_id, parent, _OPEN_TO_US)) as workspace:
                yield workspace

    @contextmanager
    def existing(self, tenant: str, task_id: str) -> Iterator[int]:
        """Yields a descriptor of the task's directory. Raises FileNotFoundError if it does not exist."""
        with (
            self.tenant_opened(tenant) as parent,
            closing_after(open_directory(_plain(task_id), parent, _OPEN_TO_US)) as workspace,
        ):
            yield workspace

    @contextmanager
    def tenant_opened(self, tenant: str, *, make: bool = False) -> Iterator[int]:
        """Yields a descriptor of the directory of the tenant's tasks. Raises FileNotFoundError, PermissionDenied."""
        _plain(tenant)
        if make:
            self._root.mkdir(parents=True, exist_ok=True)
        with closing_after(os.open(self._root, DIRECTORY & ~os.O_NOFOLLOW)) as root:
            if make:
                _make_directory(tenant, root)
            with closing_after(open_beneath((tenant,), DIRECTORY, root)) as parent:
                yield parent


def _plain(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise PermissionDenied("this token's tenant or task cannot name a workspace", reason="WRONG_RESOURCE")
    return name


def split_path(path: str) -> tuple[str, ...]:
    """Returns the components of a path inside the workspace, () for the workspace itself. Raises ToolFailure."""
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ToolFailure(f"{path!r} is not a path inside the workspace: use a relative one without '..'.", "BAD_PATH")
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:  # JSON can contain half of a surrogate pair, no file's name can
        raise ToolFailure(f"{path!r} is not a path: use whole characters.", "BAD_PATH") from None
    if len(path) > _LONGEST_PATH or len(parts) > MAX_DEPTH or any(size > 255 for size in sizes):
        limits = f"{_LONGEST_PATH} characters, {MAX_DEPTH} names, 255 bytes a name"
        raise ToolFailure(f"The path is too long: the limits are {limits}.", "BAD_PATH")
    return parts


@contextmanager
def entered(workspace: int, directories: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
    """Yields a descriptor of the directory at the path of these names. Raises OSError, also for a link."""
    if not make:
        with closing_after(open_beneath(directories, DIRECTORY, workspace)) as directory:
            yield directory
        return
    with ExitStack() as opened:
        current = workspace
        for name in directories:
            _make_directory(name, current)
            current = opened.enter_context(closing_after(open_beneath((name,), DIRECTORY, current)))
            give_to_owner(current, workspace)
        yield current


def open_to_read(name: str, directory: int) -> int:
    """Returns a descriptor of a regular file. Raises OSError, and ToolFailure for anything but a regular file."""
    descriptor = open_beneath((name,), os.O_RDONLY | FILE, directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolFailure(f"{name!r} is not a regular file.", "NOT_A_FILE")
    return descriptor


def create(name: str, directory: int) -> int:
    """Returns a descriptor of a new, empty file, which replaces what has this name. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE, 0o644, dir_fd=directory)


def write_file(name: str, content: bytes, directory: int, workspace: int, *, temporary: str) -> None:
    """Writes a file, which replaces what has this name. Raises OSError.

    The file is written under the name `temporary`, which belongs to the call, and then renamed: so no reader sees half
    a file, and when the call runs again it removes what a dead run left.
    """
    try:
        with os.fdopen(create(temporary, directory), "wb") as file:
            give_to_owner(file.fileno(), workspace)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            give_to_owner(file.fileno(), workspace)  # a program that began meanwhile may have another uid
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)  # it takes space on a full disk
        raise


def give_to_owner(descriptor: int, workspace: int) -> None:
    """Gives a file that the service makes as root to the workspace's owner, so that its programs can change it."""
    owner, made = os.fstat(workspace), os.fstat(descriptor)
    if os.geteuid() == 0 and owner.st_uid not in {0, made.st_uid}:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _make_directory(name: str, parent: int) -> None:
    with suppress(FileExistsError):  # if it is not a directory, opening it as one fails next
        os.mkdir(name, 0o755, dir_fd=parent)


@contextmanager
def closing_after(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
