"""Opens paths below a directory. No link on the way is followed, so a path cannot lead anywhere else.

Linux 5.6 and later resolve a whole path in this way with one call. Elsewhere (macOS, older kernels, containers that
refuse the call) the path is walked from directory to directory by descriptor, with the same result.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from services.tools.sandbox.permissions import DIRECTORY

FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must not wait for its other end
_OPENAT2: Final = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08

Open = Callable[[Sequence[str], int, int], int]


def open_beneath(names: Sequence[str], flags: int, directory: int) -> int:
    """Returns a descriptor of the file or directory at the path of these names; () is the directory itself.

    A name has no slash and is not `..`. `flags`: as for os.open, without O_CREAT. Raises OSError, also for a link.
    """
    return opener()(names, flags, directory)


@cache
def opener() -> Open:
    """Returns the function that this machine supports. Tries it only once."""
    if sys.platform != "linux":
        return walk
    root = os.open("/", DIRECTORY)
    try:
        os.close(resolve((), DIRECTORY, root))
    except OSError:  # ENOSYS of an old kernel, EPERM of a container's filter
        return walk
    finally:
        os.close(root)
    return resolve


def walk(names: Sequence[str], flags: int, directory: int) -> int:
    """Opens one directory after the other. Raises OSError."""
    current = directory
    *parents, last = names or (".",)
    try:
        for name in parents:
            inner = os.open(name, DIRECTORY, dir_fd=current)
            _close_unless(current, directory)
            current = inner
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    finally:
        _close_unless(current, directory)


class _How(ctypes.Structure):
    """The kernel's `struct open_how`."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def resolve(names: Sequence[str], flags: int, directory: int) -> int:
    """Lets the kernel resolve the whole path. Raises OSError."""
    path = os.fsencode("/".join(names) or ".")
    how = _How(flags | os.O_CLOEXEC, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
    while True:
        call = _libc().syscall
        descriptor = call(ctypes.c_long(_OPENAT2), directory, path, ctypes.byref(how), ctypes.c_size_t(24))
        if descriptor >= 0:
            return int(descriptor)
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), "/".join(names))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _close_unless(descriptor: int, kept: int) -> None:
    if descriptor != kept:
        os.close(descriptor)
