"""Removes a task's directory, whatever its programs left in it: a bounded number of entries in each step.

The removal does not recurse: it moves the entries of an inner directory up into the workspace, and removes the inner
directory when it is empty. So a tree of any depth needs two descriptors, no link is followed, and each step leaves
fewer entries: an interrupted removal is begun again.
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
    """Removes up to `most` entries. Returns True when nothing is left. Others may remove at the same time.

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
    """Removes one entry of any kind, as `remove_some`, while programs may write there. Raises OSError. Blocks."""
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
    """Removes the entries of a directory, as `remove_some`, and keeps the directory. Raises OSError. Blocks."""
    left = most
    while left > 0 and (names := _some_names(top, left)):
        for name in names:
            left -= _remove(top, name, left)
            if left <= 0:
                return False
    return True


def _remove(top: int, name: str, most: int) -> int:
    """Removes an entry, or up to `most` entries of a directory. Returns how many it removed or moved."""
    try:
        if not _is_directory(name, top):
            os.unlink(name, dir_fd=top)
            return 1
        with _opened(name, top) as inner:
            dealt_with = _empty(top, inner, most)
        if dealt_with < most:
            os.rmdir(name, dir_fd=top)
    except (FileNotFoundError, NotADirectoryError):
        return 1  # another replica removed it, or a program replaced it: the next step finds it
    return dealt_with + 1


def _empty(top: int, directory: int, most: int) -> int:
    """Removes the directory's files, and moves its directories up, under names that no program can have chosen."""
    dealt_with = 0
    for name in _some_names(directory, most):
        dealt_with += 1
        with suppress(FileNotFoundError):
            if _is_directory(name, directory):
                with _opened(name, directory):  # a move changes its `..`, which needs the permission to write to it
                    os.rename(name, uuid4().hex, src_dir_fd=directory, dst_dir_fd=top)
            else:
                os.unlink(name, dir_fd=directory)
    return dealt_with


def _some_names(directory: int, most: int) -> list[str]:
    """Returns up to `most` names: all names of a huge directory would take too much memory."""
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
