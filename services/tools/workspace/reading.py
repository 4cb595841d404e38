"""One file of a workspace, read in parts, and never two of its versions mixed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Lock
from typing import Final, Self

from services.tools.workspace.directories import entered, open_to_read
from tenure.domain.errors import OutOfRange, WrongState

PART_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Version:
    """What changes when a file does. Not its owner: that changes when a program is about to run."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Of a file as it is."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)

    def __str__(self) -> str:
        return f"{self.inode:x}-{self.size_bytes:x}-{self.modified_ns:x}"


class OpenFile:
    """A regular file. Its methods block."""

    def __init__(self, workspace: int, path: tuple[str, ...]) -> None:
        """Raises OSError, ToolFailed (NOT_A_FILE)."""
        with entered(workspace, path[:-1]) as directory:
            self._descriptor = open_to_read(path[-1], directory)
        self._lock = Lock()
        self.version = Version.of(os.fstat(self._descriptor))

    def close(self) -> None:
        """Once, and not while a part is read."""
        with self._lock:
            os.close(self._descriptor)

    def part(self, offset: int) -> bytes:
        """What is there, up to PART_BYTES; b"" at the end. Raises WrongState (FILE_CHANGED)."""
        most = min(PART_BYTES, max(0, self.version.size_bytes - offset))
        with self._lock:
            content = os.pread(self._descriptor, most, offset)
            self.check(str(self.version))
        return content

    def check_asked(self, offset: int, version: str) -> None:
        """Raises WrongState (FILE_CHANGED), OutOfRange."""
        if version:
            self.check(version)
        if offset > self.version.size_bytes:
            raise OutOfRange(f"the file has {self.version.size_bytes} bytes")

    def check(self, wanted: str) -> None:
        """Raises WrongState (FILE_CHANGED) unless the file is this version now."""
        if str(Version.of(os.fstat(self._descriptor))) != wanted:
            raise WrongState("the file was written meanwhile: read it anew", reason="FILE_CHANGED")
