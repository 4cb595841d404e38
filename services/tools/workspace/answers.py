"""Answers about tasks' files as messages."""

from __future__ import annotations

import os
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from services.tools.sandbox.workspace import Usage
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.copying import Copied
from services.tools.workspace.listing import FileKind, Listed
from services.tools.workspace.reading import OpenFile
from services.tools.workspace.requests import Contents
from tenure.v1 import tool_service_pb2 as pb
from tenure.v1 import workspace_pb2

_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # what a Timestamp can say
_KINDS: Final = {
    FileKind.FILE: workspace_pb2.FILE_KIND_FILE,
    FileKind.DIRECTORY: workspace_pb2.FILE_KIND_DIRECTORY,
    FileKind.LINK: workspace_pb2.FILE_KIND_LINK,
    FileKind.OTHER: workspace_pb2.FILE_KIND_OTHER,
}


def list_response(contents: Contents, bounds: Bounds) -> pb.ToolServiceListFilesResponse:
    """A page."""
    return pb.ToolServiceListFilesResponse(
        files=[_file(listed) for listed in contents.page.files],
        next_page_token=contents.page.next_token,
        usage=None if contents.usage is None else _usage(contents.usage, bounds),
    )


def read_response(path: str, part: OpenFile | bytes) -> pb.ToolServiceReadFileResponse:
    """A part of a file."""
    if isinstance(part, bytes):
        return pb.ToolServiceReadFileResponse(content=part)
    header = workspace_pb2.FileHeader(
        path=path,
        size_bytes=part.version.size_bytes,
        modified_at=_moment(part.version.modified_ns),
        version=str(part.version),
    )
    return pb.ToolServiceReadFileResponse(header=header)


def copy_response(copied: Copied | None) -> pb.CopyFilesResponse:
    """What was copied."""
    if copied is None:
        return pb.CopyFilesResponse()
    told = workspace_pb2.CopiedFiles(files=copied.files, bytes=copied.disk_bytes, left_out=copied.left_out)
    return pb.CopyFilesResponse(copied=told)


def _file(listed: Listed) -> workspace_pb2.WorkspaceFile:
    path = _text(listed.path)
    return workspace_pb2.WorkspaceFile(
        path=path,
        kind=_KINDS[listed.kind],
        size_bytes=listed.size_bytes,
        modified_at=_moment(listed.modified_ns),
        link_target=_text(listed.link_target),
        unreadable_name=path != listed.path,
    )


def _usage(usage: Usage, bounds: Bounds) -> workspace_pb2.WorkspaceUsage:
    return workspace_pb2.WorkspaceUsage(
        used_bytes=usage.disk_bytes,
        used_files=usage.entries,
        max_bytes=bounds.max_bytes,
        max_files=bounds.max_files,
        incomplete=not usage.complete,
    )


def _text(name: str) -> str:
    """A program may choose any bytes but NUL and the slash."""
    return os.fsencode(name).decode(errors="replace")


def _moment(ns: int) -> Timestamp:
    """A program may set any time."""
    seconds, nanos = divmod(ns, 1_000_000_000)
    return Timestamp(seconds=min(max(seconds, _FIRST_SECOND), _LAST_SECOND), nanos=nanos)
