"""The client's calls about the files and the waits of tasks."""

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
    """A mixin of Client, which has the stub and `_call`."""

    tasks: TaskServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

    async def list_files(self, task_id: str, path: str = "") -> AsyncGenerator[api.ListFilesResponse]:
        """Yields the files of a task's workspace, page by page; the first page has the total.

        Raises NotFound, WrongState.
        """
        request = api.ListFilesRequest(task_id=task_id, path=path, page_size=1000)
        while True:
            page: api.ListFilesResponse = await self._call(self.tasks.ListFiles, request)
            yield page
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def read_file(self, task_id: str, path: str) -> AsyncGenerator[bytes]:
        """Yields the content of one version of a file. Resumes a broken stream at the same offset.

        Raises NotFound and WrongState: FILE_CHANGED when the file was written meanwhile, or NOT_A_FILE.
        """
        request = api.ReadFileRequest(task_id=task_id, path=path)
        header: FileHeader | None = None
        reconnect = StreamReconnect()
        while header is None or request.offset < header.size_bytes:
            try:
                async for part in self.tasks.ReadFile(request):
                    reconnect.succeeded()
                    if part.HasField("header"):
                        header = header or part.header
                        request.version = header.version
                    else:
                        request.offset += len(part.content)
                        yield part.content
            except TryLater as error:
                if header is None:
                    raise
                await reconnect.wait(error)

    async def download_file(self, task_id: str, path: str, target: Path) -> int:
        """Writes a file's content to `target` and returns its size in bytes. Replaces an existing file.

        `target` appears only when it is complete: a failed download leaves nothing. Raises OSError, and the errors of
        read_file.
        """
        # Without the name of the target, which may fill the longest name that a file system takes.
        descriptor, unfinished = tempfile.mkstemp(prefix=".tenure-", dir=target.parent)
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
    """Returns the umask. The only way to read it is to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _rename(path: str, target: Path) -> None:
    Path(path).replace(target)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


# The client's calls about waits: answers and signals.


class WaitCalls:
    """A mixin of Client, which has the stub and `_call`."""

    tasks: TaskServiceAsyncStub
    _call: Callable[..., Awaitable[Any]]

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
        extra_budget_nano_usd: int = 0,
        request_id: str = "",
    ) -> task_pb2.Task:
        """Answers the wait `wait_id` with a decision or a reply. An approval needs the wait's `call_digest`.

        The extra amounts raise the caps of the task's root. The approval of a wait for budget grants them, or without
        any amount the suggested ones; BudgetExhausted: they are too small for the next model call.

        Raises WrongState when the task is in another wait (WAIT_OVER), or the wait is for another call (OTHER_CALL).
        The error's metadata describes the current wait.
        """
        request = api.ResumeTaskRequest(
            task_id=task_id,
            wait_id=wait_id,
            call_digest=call_digest,
            request_id=request_id or str(uuid_utils.uuid7()),
            comment=comment,
            edited_arguments_json=edited_arguments_json,
            extra_budget_tokens=extra_budget_tokens,
            extra_budget_nano_usd=extra_budget_nano_usd,
        )
        if decision:
            request.decision = decision
        else:
            request.reply = reply
        answer: api.ResumeTaskResponse = await self._call(self.tasks.ResumeTask, request)
        return answer.task

    async def signal(self, correlation_id: str, payload_json: str, *, request_id: str = "") -> task_pb2.Task | None:
        """Sends a signal and returns the task that waited for it.

        Returns None when no task waits for it yet: the signal is kept for a later wait.
        """
        request = api.ResumeTaskRequest(
            correlation_id=correlation_id,
            request_id=request_id or str(uuid_utils.uuid7()),
            payload_json=payload_json,
        )
        answer: api.ResumeTaskResponse = await self._call(self.tasks.ResumeTask, request)
        return answer.task if answer.HasField("task") else None
