"""The data directory of a stack: `dev.json`, with which other programs find the running stack, the lock, its end."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from devstack.child_process import FolderBusy, StackError
from devstack.options import Layout
from tenure.runtime.running_stack import FILE_NAME, LOCK_FILE_NAME, read_addresses


def write_addresses(data_dir: Path, addresses: dict[str, str]) -> None:
    """Writes `dev.json`. The replacement is atomic: readers see the old file or the new one, never half of it."""
    path = data_dir / FILE_NAME
    new_file = path.with_suffix(".tmp")
    new_file.touch(mode=0o600)
    new_file.write_text(json.dumps(addresses, indent=2) + "\n", encoding="utf-8")
    new_file.replace(path)


def forget_addresses(data_dir: Path) -> None:
    """Removes `dev.json`."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)


# The ports of the stack, so that it has the same ones after a restart.

PORTS_FILE_NAME: Final = "ports.json"


def write_ports(data_dir: Path, ports: Mapping[str, int]) -> None:
    """Writes the ports by the name of what listens there."""
    (data_dir / PORTS_FILE_NAME).write_text(json.dumps(ports, indent=2) + "\n", encoding="utf-8")


def read_ports(data_dir: Path) -> dict[str, int]:
    """Returns the ports of the folder's last stack; none before the first one, and none of a file that was damaged."""
    try:
        stored = json.loads((data_dir / PORTS_FILE_NAME).read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


# One stack per folder: two stacks would give the same tasks to two sets of services.

POSTGRES_LOCK_NAME: Final = "postgres.lock"
_LOCK_AGAIN_SECONDS: Final = 0.001


@contextmanager
def hold_folder(data_dir: Path) -> Iterator[None]:
    """Locks the folder inside the block. The lock ends with this process at the latest. Raises FolderBusy.

    The addresses of a stack that was killed are removed, because the lock says that they are those of a running one.
    """
    descriptor = os.open(data_dir / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            _lock(descriptor)
        except BlockingIOError as error:
            raise FolderBusy(_busy_message(data_dir)) from error
        forget_addresses(data_dir)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Takes the lock of a stack. Raises BlockingIOError if another stack holds it.

    A command that looks whether a stack runs (`read_addresses`) shares the lock for a moment, and is waited for.
    """
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_LOCK_AGAIN_SECONDS)


def _busy_message(data_dir: Path) -> str:
    running = read_addresses(data_dir)
    where = f"its gateway is {running['gateway']}" if running and "gateway" in running else "it is starting or stopping"
    return f"a stack runs on {data_dir} already ({where}): use that one, or choose another folder with --data"


# Deletion, which takes only what a stack has made.

_BLOCK_BYTES: Final = 512  # of st_blocks, by POSIX


def size_of(folder: Path) -> int:
    """Returns how many bytes of the disk the files below a folder take."""
    paths = (Path(root, name) for root, _, files in os.walk(folder) for name in files)
    return sum(_size_on_disk(path) for path in paths)


def _size_on_disk(path: Path) -> int:
    try:
        return path.lstat().st_blocks * _BLOCK_BYTES
    except OSError:  # deleted meanwhile
        return 0


def find_stack(data_dir: Path) -> Layout:
    """Returns the files of the stack that ran on this folder. Raises StackError if none did, or another account's."""
    layout = Layout(data_dir.resolve())
    if not (layout.data_dir / LOCK_FILE_NAME).is_file() or not layout.signing_key.exists():
        raise StackError(f"nothing is deleted: {data_dir} is not the data folder of a stack; name it with --data")
    if layout.data_dir.stat().st_uid != os.geteuid():
        raise StackError(f"nothing is deleted: {data_dir} belongs to another account")
    return layout


def delete_stack(data_dir: Path) -> list[str]:
    """Deletes the stack that ran on this folder, and the folder unless it has other files. Returns their names.

    Raises StackError as `find_stack`, or if a file cannot be deleted, and FolderBusy if the stack runs.
    """
    layout = find_stack(data_dir)
    lock = layout.data_dir / LOCK_FILE_NAME
    with hold_folder(layout.data_dir):
        try:
            own = [layout.data_dir / name for name in (FILE_NAME, PORTS_FILE_NAME, POSTGRES_LOCK_NAME)]
            for path in (*layout.files(), *own):
                _delete(path)
            lock.unlink()
            left = sorted(path.name for path in layout.data_dir.iterdir())
            if not left:
                layout.data_dir.rmdir()
        except OSError as error:
            raise StackError(f"cannot delete {error.filename}: {error.strerror}") from error
    return left


def _delete(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        _open_directories(path)
        shutil.rmtree(path)


def _open_directories(folder: Path) -> None:
    """Gives the owner all rights to the directories below: programs of agents may have taken them away."""
    folder.chmod(stat.S_IRWXU)
    for root, names, _ in os.walk(folder):  # into a directory after it was opened here
        for path in (Path(root, name) for name in names):
            if not path.is_symlink():
                with suppress(PermissionError):  # another account's, which may be empty
                    path.chmod(stat.S_IRWXU)
