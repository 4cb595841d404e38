"""Directories that programs closed: a service that is root needs no leave, any other owns what its programs made."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(name: str, parent: int | None, rights: int) -> int:
    """A descriptor of a directory that is no link, which has these rights of its owner afterwards if that is us.

    `parent`: the descriptor that a relative name starts from. Raises OSError. A program may be at it meanwhile.
    """
    if os.geteuid() == 0:
        return os.open(name, DIRECTORY, dir_fd=parent)
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except PermissionError:
        _open_up(name, parent, rights)
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        _add_rights(descriptor, rights)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_up(name: str, parent: int | None, rights: int) -> None:
    if sys.platform != "linux":  # no program runs there
        os.chmod(name, rights, dir_fd=parent)
        return
    # By name a link that a program has just put there would be followed.
    held = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{held}").chmod(stat.S_IMODE(os.fstat(held).st_mode) | rights)
    finally:
        os.close(held)


def _add_rights(descriptor: int, rights: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and status.st_mode & rights != rights:
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | rights)
