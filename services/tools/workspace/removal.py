"""Removes a task's directory, whatever its programs left in it: a limited number of entries at a time, not recursively.

The directories inside a directory are moved up into the workspace, and then the directory is removed. So a tree of any
depth needs two descriptors, no link is followed, and every step leaves less to do. An interrupted removal begins again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import uuid4

from services.tools.sandbox.permissions import open_directory

ENTRIES_A_STEP: Final = 2000
_OPEN_TO_US: Final = 0o700


def remove_some(workspace: Path, most: int = ENTRIES_A_STEP) -> bool:
    """Removes up to `most` entries. Returns True once nothing is left. Other replicas may remove the same directory.

    Raises OSError. Blocks.
    """
    try:
        with _opened(str(workspace)) as top:
            if not empty_some(top, most):
                return False
        workspace.rmdir()
    except FileNotFoundError:
        return True
    return True


def remove_some_of(name: str, parent: int, most: int = ENTRIES_A_STEP) -> bool:
    """Does the same with one entry of any kind, while a program may be writing there. Raises OSError. Blocks."""
    try:
        if not _is_directory(name, parent):
            os.unlink(name, dir_fd=parent)
            return True
        with _opened(name, parent) as top:
            if not empty_some(top, most):
                return False
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:  # a program wrote there, or replaced it
            return False
        raise
    return True


def empty_some(top: int, most: int = ENTRIES_A_STEP) -> bool:
    """Does the same with the entries of a directory, which stays. Raises OSError. Blocks."""
    left = most
    while left > 0 and (names := _some_names(top, left)):
        for name in names:
            left -= _remove(top, name, left)
            if left <= 0:
                return False
    return True


def _remove(top: int, name: str, most: int) -> int:
    """Removes one entry, or up to `most` entries of a directory. Returns how many were removed or moved."""
    try:
        if not _is_directory(name, top):
            os.unlink(name, dir_fd=top)
            return 1
        with _opened(name, top) as inner:
            dealt_with = _empty(top, inner, most)
        if dealt_with < most:
            os.rmdir(name, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return 1  # another replica removed it, or a program that still runs replaced it: the next step sees it
    return dealt_with + 1


def _empty(top: int, directory: int, most: int) -> int:
    """Removes the files of a directory, and moves its directories up under names that no program can have chosen."""
    dealt_with = 0
    for name in _some_names(directory, most):
        dealt_with += 1
        with suppress(FileNotFoundError):
            if _is_directory(name, directory):
                with _opened(name, directory):  # the rename changes its `..`, so the service needs permissions in it
                    os.rename(name, uuid4().hex, src_dir_fd=directory, dst_dir_fd=top)
            else:
                os.unlink(name, dir_fd=directory)
    return dealt_with


def _some_names(directory: int, most: int) -> list[str]:
    """Returns some names, because all names of a huge directory may not fit into memory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, most)]


def _is_directory(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextmanager
def _opened(name: str, parent: int | None = None) -> Iterator[int]:
    descriptor = open_directory(name, parent, _OPEN_TO_US)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
