"""Serves requests for tasks' files: in threads of their own, limited in number, and without a claim of the task."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from services.tools.sandbox.workspace import NOTHING, Usage, measure
from services.tools.tool import ToolFailure
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.copying import CopiedFiles, CopyStopped, copy_workspace, put_files
from services.tools.workspace.directories import Workspaces, split_path
from services.tools.workspace.kept import ContentPart, keep_part, read_part
from services.tools.workspace.reading import (
    FileKind,
    FilePage,
    ListedFile,
    OpenFile,
    digest_of_file,
    list_page,
    read_token,
)
from tenure.domain.errors import InvalidRequest, LimitReached, NotFound, WrongState
from tenure.domain.outputs import FileDigest
from tenure.domain.texts import KeptContent, kept_path
from tenure.runtime.failpoints import failpoint
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1 import tool_service_pb2 as pb
from tenure.v1 import workspace_pb2

_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")
PAGE: Final = 200
MAX_READERS: Final = 64
MAX_COPIES: Final = 16
"""Copies in progress or waiting for a thread."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A page of a directory. `usage`: only with the first page."""

    page: FilePage
    usage: Usage | None


class FileRequests:
    """Reads and copies the files of tasks. Readers and copies have threads of their own, so no tool waits for them."""

    def __init__(self, root: Path, bounds: Bounds, threads: ThreadPoolExecutor, copying: ThreadPoolExecutor) -> None:
        self._root, self._workspaces = root, Workspaces(root)
        self.bounds = bounds
        self._threads, self._copying = threads, copying
        self._readers = self._copies = 0

    async def list(self, tenant: str, task_id: str, path: str, token: str, most: int) -> Contents:
        """Returns a page of a directory. Raises NotFound, WrongState, InvalidRequest."""
        after = read_token(token)

        def work() -> Contents:
            with _reporting_errors(path):
                directories = split_path(path)
                try:
                    with self._workspaces.existing(tenant, task_id) as workspace:
                        page = list_page(workspace, directories, after, most or PAGE)
                except FileNotFoundError:
                    if directories:
                        raise
                    return Contents(FilePage([], ""), None if token else NOTHING)
                return Contents(page, None if token else measure(self._root / tenant / task_id))

        return await self._in_thread(work)

    async def digests(self, tenant: str, task_id: str, paths: Sequence[str]) -> dict[str, FileDigest]:
        """Returns the digests by path, without those of files that do not exist or cannot be read."""

        def work() -> dict[str, FileDigest]:
            digests = {}
            with suppress(FileNotFoundError), self._workspaces.existing(tenant, task_id) as workspace:
                for path in paths:
                    with suppress(OSError, ToolFailure):
                        digests[path] = digest_of_file(workspace, path)
            return digests

        return await self._in_thread(work)

    async def read(
        self, tenant: str, task_id: str, path: str, offset: int, version: str
    ) -> AsyncGenerator[OpenFile | bytes, None]:
        """Yields the file, then the parts of its content from the offset on.

        Raises NotFound, WrongState, InvalidRequest, LimitReached.
        """
        if self._readers >= MAX_READERS:
            raise LimitReached("too many files are being read", reason="TOO_MANY_READERS", retry_after_seconds=1.0)
        self._readers += 1
        try:
            opening = self._in_thread(partial(self._open, tenant, task_id, path, offset, version))
            try:
                file = await asyncio.shield(opening)
                yield file
                while part := await self._in_thread(partial(file.part, offset)):
                    yield part
                    offset += len(part)
            finally:
                opening.add_done_callback(self._close)
        finally:
            self._readers -= 1

    async def keep(self, tenant: str, task_id: str, part: ContentPart) -> KeptContent | None:
        """Writes a part of content. Returns the content after the last one.

        Raises WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE, CONTENT_MISMATCH, STORAGE_FULL).
        """

        def work() -> KeptContent | None:
            with _reporting_errors(kept_path(part.digest)):
                return keep_part(self._workspaces, self.bounds, tenant, task_id, part)

        return await self._in_thread(work)

    async def read_kept(self, tenant: str, task_id: str, path: str, offset: int) -> bytes:
        """Returns a part of kept content. Raises NotFound, WrongState."""

        def work() -> bytes:
            with _reporting_errors(path):
                return read_part(self._workspaces, tenant, task_id, path, offset)

        return await self._in_thread(work)

    def _close(self, opening: asyncio.Future[OpenFile]) -> None:
        """Closes the file in a thread: a part may still be read for a caller that went away."""
        if not opening.cancelled() and opening.exception() is None:
            self._threads.submit(opening.result().close)

    async def copy(self, tenant: str, from_task_id: str, task_id: str) -> CopiedFiles | None:
        """Copies a workspace as `copy_workspace` does. Stops when the caller goes away. Also raises LimitReached."""
        stopped = Event()
        copying = self._begin_copying(
            partial(copy_workspace, self._workspaces, self._root, tenant, from_task_id, task_id, self.bounds, stopped)
        )
        try:
            copied = await asyncio.shield(copying)
        except asyncio.CancelledError:
            stopped.set()
            raise
        await failpoint("tools.after_copy")
        return copied

    async def put(self, tenant: str, task_id: str, files: Mapping[str, bytes], message: str = "") -> None:
        """Puts files into a workspace as `put_files` does. Also raises LimitReached."""
        putting = partial(put_files, self._workspaces, self._root, tenant, task_id, files, self.bounds, message)
        await asyncio.shield(self._begin_copying(putting))

    def _begin_copying(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        if self._copies >= MAX_COPIES:
            raise LimitReached(
                "too many workspaces are being copied", reason="TOO_MANY_COPIES", retry_after_seconds=2.0
            )
        self._copies += 1
        copying = asyncio.get_running_loop().run_in_executor(self._copying, work)
        copying.add_done_callback(self._copied)
        return copying

    def _copied(self, copying: asyncio.Future[Any]) -> None:
        self._copies -= 1
        if (
            not copying.cancelled()
            and (error := copying.exception()) is not None
            and not isinstance(error, CopyStopped)
        ):
            _log.info("a workspace was not copied", extra={"error": str(error)})

    def _open(self, tenant: str, task_id: str, path: str, offset: int, version: str) -> OpenFile:
        with _reporting_errors(path):
            parts = split_path(path)
            if not parts:
                raise ToolFailure(f"{path!r} is the workspace itself, not a file in it", "NOT_A_FILE")
            with self._workspaces.existing(tenant, task_id) as workspace:
                file = OpenFile(workspace, parts)
        try:
            file.check_offset(offset, version)
        except BaseException:
            file.close()
            raise
        return file

    def _in_thread(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)


@contextmanager
def _reporting_errors(path: str) -> Iterator[None]:
    """Translates the errors of a path."""
    try:
        yield
    except ToolFailure as refused:
        if refused.detail == "BAD_PATH":
            raise InvalidRequest(violations=[("path", refused.message)], reason="BAD_PATH") from refused
        raise WrongState(refused.message, reason=refused.detail) from refused
    except FileNotFoundError as error:
        raise NotFound(f"{path!r} not found in the workspace", reason="FILE_NOT_FOUND") from error
    except PermissionError as error:
        message = f"{path!r} is closed to the tool service: a program of the task must open it (chmod)"
        raise WrongState(message, reason="WORKSPACE_UNREADABLE") from error
    except BlockingIOError as error:
        message = f"{path!r} is held by a program (a lease): try again later"
        raise WrongState(message, reason="WORKSPACE_UNREADABLE") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidRequest(violations=[("path", "is too long")], reason="BAD_PATH") from error
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            message = f"{path!r} is a link, or uses a link or a file as a directory"
            raise WrongState(message, reason="NOT_A_DIRECTORY") from error
        if error.errno == errno.ENXIO:  # a socket
            raise WrongState(f"{path!r} is not a regular file", reason="NOT_A_FILE") from error
        raise


# Translates answers into messages.

_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the range of a Timestamp
_KINDS: Final = {
    FileKind.FILE: workspace_pb2.FILE_KIND_FILE,
    FileKind.DIRECTORY: workspace_pb2.FILE_KIND_DIRECTORY,
    FileKind.LINK: workspace_pb2.FILE_KIND_LINK,
    FileKind.OTHER: workspace_pb2.FILE_KIND_OTHER,
}


def list_response(contents: Contents, bounds: Bounds) -> tasks_pb.ListFilesResponse:
    """Returns the message for a page."""
    return tasks_pb.ListFilesResponse(
        files=[_file(listed) for listed in contents.page.files],
        next_page_token=contents.page.next_token,
        usage=None if contents.usage is None else _usage(contents.usage, bounds),
    )


def read_response(path: str, part: OpenFile | bytes) -> tasks_pb.ReadFileResponse:
    """Returns the message for a part of a file, or for its header."""
    if isinstance(part, bytes):
        return tasks_pb.ReadFileResponse(content=part)
    header = workspace_pb2.FileHeader(
        path=path,
        size_bytes=part.version.size_bytes,
        modified_at=_moment(part.version.modified_ns),
        version=str(part.version),
    )
    return tasks_pb.ReadFileResponse(header=header)


def copy_response(copied: CopiedFiles | None) -> pb.CopyFilesResponse:
    """Returns the message for a copy; None: it was copied before."""
    if copied is None:
        return pb.CopyFilesResponse()
    files_message = workspace_pb2.CopiedFiles(files=copied.files, bytes=copied.disk_bytes, left_out=copied.left_out)
    return pb.CopyFilesResponse(copied=files_message)


def _file(listed: ListedFile) -> workspace_pb2.WorkspaceFile:
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
    """Returns a name as text: a program may choose any bytes except NUL and the slash."""
    return os.fsencode(name).decode(errors="replace")


def _moment(ns: int) -> Timestamp:
    """Returns a time as a Timestamp: a program may set any time."""
    seconds, nanos = divmod(ns, 1_000_000_000)
    return Timestamp(seconds=min(max(seconds, _FIRST_SECOND), _LAST_SECOND), nanos=nanos)
