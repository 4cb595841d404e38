"""The client's calls about tasks' files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uuid_utils

from tenure.client.reconnect import StreamReconnect
from tenure.domain.errors import TryLater
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

if TYPE_CHECKING:
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub
    from tenure.v1.workspace_pb2 import FileHeader


class FileCalls:
    """A part of Client, which has the stub and the patience."""

    tasks: TaskServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def list_files(self, task_id: str, path: str = "") -> AsyncGenerator[api.ListFilesResponse]:
        """What is in a task's workspace, page by page; the first says how full it is. Raises NotFound, WrongState."""
        request = api.ListFilesRequest(task_id=task_id, path=path, page_size=1000)
        while True:
            page: api.ListFilesResponse = await self._patiently(self.tasks.ListFiles, request)
            yield page
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def read_file(self, task_id: str, path: str) -> AsyncGenerator[bytes]:
        """A file's content, all of one version. A broken stream is resumed where it broke.

        Raises NotFound, and WrongState: FILE_CHANGED when it is written meanwhile, NOT_A_FILE.
        """
        request = api.ReadFileRequest(task_id=task_id, path=path)
        header: FileHeader | None = None
        contact = StreamReconnect()
        while header is None or request.offset < header.size_bytes:
            try:
                async for part in self.tasks.ReadFile(request):
                    contact.made()
                    if part.HasField("header"):
                        header = header or part.header
                        request.version = header.version
                    else:
                        request.offset += len(part.content)
                        yield part.content
            except TryLater as error:
                if header is None:
                    raise
                await contact.lost(error)

    async def download_file(self, task_id: str, path: str, target: Path) -> int:
        """Writes a file's content to `target`, in the place of what is there; how many bytes.

        It appears when all of it is there: what breaks off leaves nothing. Raises as read_file, and OSError.
        """
        descriptor, unfinished = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            size_bytes = 0
            with os.fdopen(descriptor, "wb") as file:
                async with aclosing(self.read_file(task_id, path)) as parts:
                    async for part in parts:
                        size_bytes += file.write(part)
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            _rename(unfinished, target)
        except BaseException:
            _remove(unfinished)
            raise
        return size_bytes


def _umask() -> int:
    """There is no way to read it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _rename(path: str, target: Path) -> None:
    Path(path).replace(target)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


# The client's calls about waits: answers to them, and events.


class WaitCalls:
    """A part of Client, which has the stub and the patience."""

    tasks: TaskServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def resume(
        self,
        task_id: str,
        wait_id: str,
        *,
        decision: str = "",
        reply: str = "",
        call_digest: str = "",
        comment: str = "",
        edited_arguments_json: str = "",
        extra_budget_tokens: int = 0,
        request_id: str = "",
    ) -> task_pb2.Task:
        """Answers the wait `wait_id` by a decision or a reply; leave for a tool's call needs the wait's `call_digest`.

        WrongState when another wait (WAIT_OVER) or another call (OTHER_CALL) is the present one; the error's metadata
        describes it.
        """
        request = api.ResumeTaskRequest(
            task_id=task_id,
            wait_id=wait_id,
            call_digest=call_digest,
            request_id=request_id or str(uuid_utils.uuid7()),
            comment=comment,
            edited_arguments_json=edited_arguments_json,
            extra_budget_tokens=extra_budget_tokens,
        )
        if decision:
            request.decision = decision
        else:
            request.reply = reply
        answer: api.ResumeTaskResponse = await self._patiently(self.tasks.ResumeTask, request)
        return answer.task

    async def signal(self, correlation_id: str, payload_json: str, *, request_id: str = "") -> task_pb2.Task | None:
        """Sends an event to the task that waits for it; None: it is kept for one to come."""
        request = api.ResumeTaskRequest(
            correlation_id=correlation_id,
            request_id=request_id or str(uuid_utils.uuid7()),
            payload_json=payload_json,
        )
        answer: api.ResumeTaskResponse = await self._patiently(self.tasks.ResumeTask, request)
        return answer.task if answer.HasField("task") else None
