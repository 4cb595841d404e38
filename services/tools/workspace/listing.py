"""What is in a workspace, a page at a time, in an order that a page can be continued in while programs write."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from services.tools.workspace.beneath import DIRECTORY, open_beneath
from services.tools.workspace.directories import MAX_DEPTH, closing_after, entered
from tenure.domain.errors import InvalidRequest

_PAGE_BYTES: Final = 1024 * 1024
_LONGEST_TARGET: Final = 1024
_Names = tuple[str, ...]


class FileKind(StrEnum):
    """What an entry is."""

    FILE = "FILE"
    DIRECTORY = "DIRECTORY"
    LINK = "LINK"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry. `path`: from the directory that was listed; with surrogates where a name is no UTF-8."""

    path: str
    kind: FileKind
    size_bytes: int
    modified_ns: int
    link_target: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """`next_token`: "" when nothing comes after."""

    files: list[Listed]
    next_token: str


def list_page(workspace: int, directories: _Names, token: str, most: int) -> Page:
    """Up to so many entries after the one the token names. Raises OSError, InvalidRequest. Blocks."""
    after = _read_token(token)
    files: list[Listed] = []
    size_bytes = 0
    with entered(workspace, directories) as directory, closing(_walk(directory, (), after)) as found:
        for listed in found:
            if len(files) == most or size_bytes > _PAGE_BYTES:
                return Page(files, _token(files[-1].path))
            files.append(listed)
            size_bytes += len(os.fsencode(listed.path)) + len(listed.link_target)
    return Page(files, "")


def kind_of(mode: int) -> FileKind:
    """What a file's mode says."""
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.LINK if stat.S_ISLNK(mode) else FileKind.OTHER


def _walk(directory: int, above: _Names, after: Sequence[str]) -> Generator[Listed, None, None]:
    """Everything below, each directory before what is in it; `after` names the last one that is known already."""
    known, rest = (after[0], after[1:]) if after else ("", ())
    for name in sorted(os.listdir(directory)):
        if name < known:
            continue
        listed = _look(directory, above, name)
        if listed is None:
            continue
        if name != known:
            yield listed
        if listed.kind is FileKind.DIRECTORY and len(above) + 1 < MAX_DEPTH:
            yield from _inside(directory, (*above, name), rest if name == known else ())


def _inside(parent: int, names: _Names, after: Sequence[str]) -> Generator[Listed, None, None]:
    try:
        descriptor = open_beneath(names[-1:], DIRECTORY, parent)
    except OSError:
        return  # gone, something else by now, or closed to us: it is listed itself
    with closing_after(descriptor) as inner:
        yield from _walk(inner, names, after)


def _look(directory: int, above: _Names, name: str) -> Listed | None:
    """None for what a program has just removed."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        kind = kind_of(status.st_mode)
        target = os.readlink(name, dir_fd=directory)[:_LONGEST_TARGET] if kind is FileKind.LINK else ""
    except OSError:
        return None
    size = status.st_size if kind is FileKind.FILE else 0
    return Listed("/".join((*above, name)), kind, size, status.st_mtime_ns, target)


def _token(path: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(path)).decode()


def _read_token(token: str) -> Sequence[str]:
    try:
        path = os.fsdecode(base64.b64decode(token, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(violations=[("page_token", "must be of the page before")]) from error
    return path.split("/") if path else ()
