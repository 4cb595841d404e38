"""Writes kept content in parts, and reads it. The functions block: call them in a thread.

All writers of a name write the same bytes, so two of them do not disturb each other. A program may write to the file
while it grows; the digest of what is there at the end decides.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from services.tools.tool import ToolFailure
from services.tools.workspace.beneath import FILE
from services.tools.workspace.bounds import Bounds, reporting_full_disk
from services.tools.workspace.directories import (
    TEMPORARY,
    Workspaces,
    closing_after,
    entered,
    give_to_owner,
    open_to_read,
    split_path,
)
from tenure.domain.texts import CONTENT_MISMATCH, MAX_PART_BYTES, KeptContent, kept_path

_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of content, of which digest and size are stated."""

    digest: str
    size_bytes: int
    offset: int
    part: bytes

    @property
    def is_last(self) -> bool:
        """Whether the content ends with this part."""
        return self.offset + len(self.part) == self.size_bytes


def keep_part(
    workspaces: Workspaces, bounds: Bounds, tenant: str, task_id: str, part: ContentPart
) -> KeptContent | None:
    """Writes a part, and after the last one gives the file its name. Returns the content then.

    Raises OSError, and ToolFailure (WORKSPACE_LIMIT, STORAGE_FULL, CONTENT_MISMATCH).
    """
    if not part.offset:
        bounds.check_room(workspaces.directory(tenant, task_id), part.size_bytes, more_files=2)
    path = kept_path(part.digest)
    directory_name, name = path.split("/")
    with (
        reporting_full_disk(),
        workspaces.opened(tenant, task_id) as workspace,
        entered(workspace, (directory_name,), make=True) as directory,
    ):
        temporary = f"{TEMPORARY}{name}"
        with closing_after(_open_to_write(temporary, directory)) as descriptor:
            give_to_owner(descriptor, workspace)
            if part.offset > os.fstat(descriptor).st_size:  # only the first part looks for room, for all of them
                kept = _kept_before(part, path, temporary, directory)
                return kept if part.is_last else None
            _write(descriptor, part)
            if not part.is_last:
                return None
            os.ftruncate(descriptor, part.size_bytes)
            if _digest(descriptor) != part.digest:
                return _kept_before(part, path, temporary, directory)
            os.fsync(descriptor)
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            os.fsync(directory)
    return KeptContent(path, part.digest, part.size_bytes)


def _kept_before(part: ContentPart, path: str, temporary: str, directory: int) -> KeptContent:
    """Returns the content if an earlier request kept it: its answer was lost, and its last part came again."""
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    with suppress(OSError, ToolFailure), closing_after(open_to_read(path.split("/")[1], directory)) as kept:
        if _digest(kept) == part.digest:
            return KeptContent(path, part.digest, part.size_bytes)
    message = "parts are missing, or all of them do not have the digest that was stated: send all of them again"
    raise ToolFailure(message, CONTENT_MISMATCH)


def read_part(workspaces: Workspaces, tenant: str, task_id: str, path: str, offset: int) -> bytes:
    """Returns what a file has from the offset on, at most MAX_PART_BYTES. Raises OSError, ToolFailure."""
    *above, name = split_path(path)
    with (
        workspaces.existing(tenant, task_id) as workspace,
        entered(workspace, tuple(above)) as directory,
        closing_after(open_to_read(name, directory)) as descriptor,
    ):
        return os.pread(descriptor, MAX_PART_BYTES, offset)


def _open_to_write(name: str, directory: int) -> int:
    """Returns a descriptor of a regular file, made when it is not there; whatever else has the name is removed."""
    flags = os.O_RDWR | os.O_CREAT | FILE
    with suppress(OSError):
        descriptor = os.open(name, flags, 0o644, dir_fd=directory)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    os.unlink(name, dir_fd=directory)
    return os.open(name, flags | os.O_EXCL, 0o644, dir_fd=directory)


def _write(descriptor: int, part: ContentPart) -> None:
    left, offset = memoryview(part.part), part.offset
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def _digest(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while part := os.pread(descriptor, _READ_BYTES, offset):
        digest.update(part)
        offset += len(part)
    return f"sha256:{digest.hexdigest()}"
