"""One file's content into another: shared blocks where the filesystem can, holes left as holes."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

_PIECE_BYTES: Final = 8 * 1024 * 1024
_FICLONE: Final = 0x40049409
_NOT_HERE: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
_LINUX: Final = sys.platform == "linux"


def copy_content(source: int, target: int, size_bytes: int, check: Callable[[], None]) -> None:
    """Up to `size_bytes`, whatever the source grows to. `check` is called between pieces, and may raise.

    Raises OSError.
    """
    if _LINUX and _share(source, target):
        os.ftruncate(target, min(size_bytes, os.fstat(target).st_size))
        return
    os.ftruncate(target, size_bytes)
    for start, end in _filled(source, size_bytes):
        at = start
        while at < end:
            check()
            copied = _copy_some(source, target, at, min(_PIECE_BYTES, end - at))
            if copied == 0:
                return  # it was cut short meanwhile
            at += copied


def _share(source: int, target: int) -> bool:
    """Whether both now have the same blocks on disk, until one is written."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _filled(source: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """What is no hole."""
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            start, end = at, size_bytes
        yield start, min(end, size_bytes)
        at = end


def _copy_some(source: int, target: int, at: int, most: int) -> int:
    if _LINUX:
        try:
            return os.copy_file_range(source, target, most, at, at)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    content = os.pread(source, min(most, 1024 * 1024), at)
    written = 0
    while written < len(content):
        written += os.pwrite(target, content[written:], at + written)
    return len(content)
