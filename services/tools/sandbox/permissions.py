"""Opens directories of a workspace whose permissions a program removed.

Root needs no permissions. The programs of a service that is not root run under the service's uid, so the service owns
the files that they create, and can add the owner's permissions again.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(name: str, parent: int | None, rights: int) -> int:
    """Returns a descriptor of a directory, which must not be a link.

    If the service owns the directory and is not root, the owner has these permission bits (`rights`) afterwards.
    `parent`: the descriptor of the directory that a relative name starts from. Raises OSError. A program may change
    the directory at the same time.
    """
    if os.geteuid() == 0:
        return os.open(name, DIRECTORY, dir_fd=parent)
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except PermissionError:
        add_rights_by_name(name, parent, rights)
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        _add_rights(descriptor, rights)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def add_rights_by_name(name: str, parent: int | None, rights: int) -> None:
    if sys.platform != "linux":  # no program runs on other systems
        os.chmod(name, rights, dir_fd=parent)
        return
    # chmod by name would follow a link that a program has just created there, so this goes through a descriptor.
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(os.fstat(descriptor).st_mode) | rights)
    finally:
        os.close(descriptor)


def _add_rights(descriptor: int, rights: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and status.st_mode & rights != rights:
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | rights)
