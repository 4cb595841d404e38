"""Lists a workspace in pages, and reads one file in parts without mixing two of its versions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Final, Self

from services.tools.sandbox.permissions import DIRECTORY
from services.tools.tool import ToolFailure
from services.tools.workspace.beneath import open_beneath
from services.tools.workspace.directories import MAX_DEPTH, TEMPORARY, closing_after, entered, open_to_read, split_path
from tenure.domain.errors import InvalidRequest, OutOfRange, WrongState
from tenure.domain.outputs import FileDigest

# Lists the entries in a fixed order, so that the next page continues correctly while programs write.

_PAGE_BYTES: Final = 1024 * 1024
_LONGEST_TARGET: Final = 1024
_Names = tuple[str, ...]


class FileKind(StrEnum):
    """The kind of an entry."""

    FILE = "FILE"
    DIRECTORY = "DIRECTORY"
    LINK = "LINK"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """An entry. `path`: relative to the listed directory, with surrogates for bytes that are not UTF-8."""

    path: str
    kind: FileKind
    size_bytes: int
    modified_ns: int
    link_target: str = ""


@dataclass(frozen=True, slots=True)
class FilePage:
    """A page of entries. `next_token`: "" for the last page."""

    files: list[ListedFile]
    next_token: str


def list_page(workspace: int, directories: _Names, after: Sequence[str], most: int) -> FilePage:
    """Returns at most `most` entries after this path. Raises OSError. Blocks."""
    files: list[ListedFile] = []
    size_bytes = 0
    with entered(workspace, directories) as directory, closing(_walk(directory, (), after)) as listing:
        for listed in listing:
            if len(files) == most or size_bytes > _PAGE_BYTES:
                return FilePage(files, _token(files[-1].path))
            files.append(listed)
            size_bytes += len(os.fsencode(listed.path)) + len(listed.link_target)
    return FilePage(files, "")


def kind_of(mode: int) -> FileKind:
    """Returns the kind of an entry with this mode."""
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.LINK if stat.S_ISLNK(mode) else FileKind.OTHER


def _walk(directory: int, above: _Names, after: Sequence[str]) -> Generator[ListedFile, None, None]:
    """Yields all entries below, each directory before its entries, that come after the path `after`."""
    known, rest = (after[0], after[1:]) if after else ("", ())
    for name in sorted(os.listdir(directory)):
        if name < known or name.startswith(TEMPORARY):
            continue
        listed = _look(directory, above, name)
        if listed is None:
            continue
        if name != known:
            yield listed
        if listed.kind is FileKind.DIRECTORY and len(above) + 1 < MAX_DEPTH:
            yield from _inside(directory, (*above, name), rest if name == known else ())


def _inside(parent: int, names: _Names, after: Sequence[str]) -> Generator[ListedFile, None, None]:
    try:
        descriptor = open_beneath(names[-1:], DIRECTORY, parent)
    except OSError:
        return  # removed, replaced or not readable: only its own entry is listed
    with closing_after(descriptor) as inner:
        yield from _walk(inner, names, after)


def _look(directory: int, above: _Names, name: str) -> ListedFile | None:
    """Returns the entry, or None if a program just removed it."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = kind_of(status.st_mode)
        target = os.readlink(name, dir_fd=directory)[:_LONGEST_TARGET] if kind is FileKind.LINK else ""
    except OSError:
        return None
    size = status.st_size if kind is FileKind.FILE else 0
    return ListedFile("/".join((*above, name)), kind, size, status.st_mtime_ns, target)


def _token(path: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(path)).decode()


def read_token(token: str) -> Sequence[str]:
    """Returns the path of the last entry of the page before. Raises InvalidRequest."""
    try:
        path = os.fsdecode(base64.b64decode(token, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(violations=[("page_token", "must be the token of the page before")]) from error
    return path.split("/") if path else ()


PART_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies the content of a file at a moment. The owner is not part of it: it changes before a program runs."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Returns the version of a file with this status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)

    def __str__(self) -> str:
        return f"{self.inode:x}-{self.size_bytes:x}-{self.modified_ns:x}"


def digest_of_file(workspace: int, path: str) -> FileDigest:
    """Returns the SHA-256 and the size of a regular file. Blocks while it reads all of it.

    Raises OSError, and ToolFailure (BAD_PATH, NOT_A_FILE, FILE_CHANGED).
    """
    parts = split_path(path)
    if not parts:
        raise ToolFailure(f"{path!r} does not name a file.", "BAD_PATH")
    file = OpenFile(workspace, parts)
    digest, offset = hashlib.sha256(), 0
    try:
        while part := file.part(offset):
            digest.update(part)
            offset += len(part)
    except WrongState as changed:
        raise ToolFailure(
            f"{path!r} was written meanwhile: record it when it is complete.", "FILE_CHANGED"
        ) from changed
    finally:
        file.close()
    return FileDigest(f"sha256:{digest.hexdigest()}", offset)


class OpenFile:
    """A regular file. Its methods block."""

    def __init__(self, workspace: int, path: tuple[str, ...]) -> None:
        """Raises OSError, ToolFailure (NOT_A_FILE)."""
        with entered(workspace, path[:-1]) as directory:
            self._descriptor = open_to_read(path[-1], directory)
        self._lock = Lock()
        self.version = Version.of(os.fstat(self._descriptor))

    def close(self) -> None:
        """Closes the file, after a part that is being read. May be called only once."""
        with self._lock:
            os.close(self._descriptor)

    def part(self, offset: int) -> bytes:
        """Returns at most PART_BYTES from the offset on; b"" at the end. Raises WrongState (FILE_CHANGED)."""
        most = min(PART_BYTES, max(0, self.version.size_bytes - offset))
        with self._lock:
            content = os.pread(self._descriptor, most, offset)
            self.check(str(self.version))
        return content

    def check_offset(self, offset: int, version: str) -> None:
        """Raises WrongState (FILE_CHANGED), OutOfRange."""
        if version:
            self.check(version)
        if offset > self.version.size_bytes:
            raise OutOfRange(f"the file has {self.version.size_bytes} bytes")

    def check(self, wanted: str) -> None:
        """Raises WrongState (FILE_CHANGED) unless the file is this version now."""
        if str(Version.of(os.fstat(self._descriptor))) != wanted:
            raise WrongState("the file was written meanwhile: read it from the beginning", reason="FILE_CHANGED")
