"""The bounds of a workspace, and the check whether there is room for more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.tools.sandbox.workspace import measure
from services.tools.tool import ToolFailure

_MIB: Final = 1024 * 1024
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers of a full disk."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most bytes on disk, and the most files, directories and links."""

    max_bytes: int = 512 * _MIB
    max_files: int = 20_000

    def check_room(self, workspace: Path, more_bytes: int, more_files: int) -> None:
        """Raises ToolFailure (WORKSPACE_LIMIT) when there is no room for so many bytes and files. Blocks."""
        used = measure(workspace)
        if not used.complete:
            raise ToolFailure("The workspace holds more than can be counted: delete files first.", "WORKSPACE_LIMIT")
        if used.disk_bytes + more_bytes > self.max_bytes:
            message = (
                f"The workspace is full: {used.disk_bytes} of {self.max_bytes} bytes are used. Remove files first."
            )
            raise ToolFailure(message, "WORKSPACE_LIMIT")
        if used.entries + more_files > self.max_files:
            message = f"The workspace is full: it has {used.entries} of {self.max_files} files. Remove some first."
            raise ToolFailure(message, "WORKSPACE_LIMIT")


@contextmanager
def reporting_full_disk() -> Iterator[None]:
    """Turns the error of a full disk into ToolFailure (STORAGE_FULL)."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            message = "There is no room on the disk of the tool service: nothing was written."
            raise ToolFailure(message, "STORAGE_FULL") from error
        raise
