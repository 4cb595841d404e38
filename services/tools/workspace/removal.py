"""Removing a task's directory, whatever its programs left in it: so many entries at a time, without recursion.

A directory found inside is not walked into: what it holds is moved up into the workspace, and it is removed empty. So a
tree of any depth takes two descriptors, no link is ever followed, and every step leaves less than there was: what is
interrupted is simply begun again.
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
    """Remove up to `most` entries; True once nothing is left. Others may be at it too. Raises OSError. Blocks."""
    try:
        with _opened(str(workspace)) as top:
            if not empty_some(top, most):
                return False
        workspace.rmdir()
    except FileNotFoundError:
        return True
    return True


def remove_some_of(name: str, parent: int, most: int = ENTRIES_A_STEP) -> bool:
    """The same of one entry, whatever it is, while a program may be writing there. Raises OSError. Blocks."""
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
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:  # written to, or something else, meanwhile
            return False
        raise
    return True


def empty_some(top: int, most: int = ENTRIES_A_STEP) -> bool:
    """The same of what is in a directory, which stays. Raises OSError. Blocks."""
    left = most
    while left > 0 and (names := _some_names(top, left)):
        for name in names:
            left -= _remove(top, name, left)
            if left <= 0:
                return False
    return True


def _remove(top: int, name: str, most: int) -> int:
    """One entry, or what is in a directory up to so many; how many were dealt with."""
    try:
        if not _is_directory(name, top):
            os.unlink(name, dir_fd=top)
            return 1
        with _opened(name, top) as inner:
            dealt_with = _empty(top, inner, most)
        if dealt_with < most:
            os.rmdir(name, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return 1  # another replica removed it, or a program that will not die put something else there: seen again
    return dealt_with + 1


def _empty(top: int, directory: int, most: int) -> int:
    """Its files go, its directories move up, under names that no program can have chosen."""
    dealt_with = 0
    for name in _some_names(directory, most):
        dealt_with += 1
        with suppress(FileNotFoundError):
            if _is_directory(name, directory):
                with _opened(name, directory):  # its own `..` changes: it has to be open to us
                    os.rename(name, uuid4().hex, src_dir_fd=directory, dst_dir_fd=top)
            else:
                os.unlink(name, dir_fd=directory)
    return dealt_with


def _some_names(directory: int, most: int) -> list[str]:
    """Never all names of a huge directory at once."""
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
