"""TaskService, the API of backends: the methods that ask several services, or translate a request for the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from services.gateway.client_fields import caller, new_id
from services.gateway.explain import explain_task
from services.gateway.external_entries import append_external, copy_shared
from services.gateway.forwarder import Forwarder
from services.gateway.live_text import LiveTextRelay
from services.gateway.peers import Peers, out_of_reach, read_task, with_retries
from services.gateway.plans import check_expression, end_call_plan, list_call_plans
from services.gateway.task_changes import WatchTasksStream
from services.gateway.tool_names import check_names_of_fork, check_tool_names, earlier_result
from services.gateway.undo import plan_undo, undo_task
from services.gateway.watch import WatchTaskStream, follow_entries
from tenure.domain.errors import Unavailable
from tenure.domain.images import message_name, of_message, submitted_file
from tenure.domain.states import is_terminal
from tenure.runtime.request_context import traceparent
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, task_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools
from tenure.wire.common import STATES, seconds
from tenure.wire.tool import submitted_file_to_wire

# ForkTask, and SubmitTask with files: reserves the task id, puts the files under it, then creates the task. SendMessage
# and ResumeTask with files: checks the message or the answer, puts the files, then records it.

COPY_TIMEOUT_SECONDS: Final = 120.0


async def fork_task(peers: Peers, fork: api.ForkTaskRequest, sent: SentFiles) -> api.ForkTaskResponse:
    """Forks a task. `fork`: as the ledger takes it; `sent`: the files of its message.

    Raises the ledger's errors, and WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE) for the files.
    """
    if fork.without_files and not sent.files:
        return await with_retries(lambda: peers.checkpoint.ForkTask(fork))
    prepare = ledger.PrepareForkRequest(fork=fork)
    prepared = await with_retries(lambda: peers.checkpoint.PrepareFork(prepare))
    if prepared.WhichOneof("result") == "task":
        return api.ForkTaskResponse(task=prepared.task)
    done = tools.CopyFilesResponse()
    if not fork.without_files:
        copy = tools.CopyFilesRequest(from_task_id=fork.task_id, task_id=prepared.prepared_task_id)
        done = await with_retries(lambda: peers.tools.CopyFiles(copy, timeout=COPY_TIMEOUT_SECONDS))
    await sent.put(peers, prepared.prepared_task_id)
    fork.prepared_task_id = prepared.prepared_task_id
    task = (await with_retries(lambda: peers.checkpoint.ForkTask(fork))).task
    made_now = task.task_id == prepared.prepared_task_id and done.HasField("copied")
    return api.ForkTaskResponse(task=task, copied=done.copied if made_now else None)


async def submit_with_files(
    peers: Peers, request: api.SubmitTaskRequest, create: ledger.CreateTaskRequest
) -> api.SubmitTaskResponse:
    """Submits a task whose files are in place before it may run. Raises as the ledger does, and WORKSPACE_LIMIT."""
    prepare = ledger.PrepareTaskRequest(create_task=create)
    prepared = await with_retries(lambda: peers.checkpoint.PrepareTask(prepare))
    if prepared.WhichOneof("result") == "task":
        return api.SubmitTaskResponse(task=prepared.task)
    await _put(peers, tools.PutFilesRequest(task_id=prepared.prepared_task_id, files=request.files))
    create.prepared_task_id = prepared.prepared_task_id
    created = await with_retries(lambda: peers.checkpoint.CreateTask(create))
    return api.SubmitTaskResponse(task=created.task)


@dataclass(frozen=True, slots=True)
class SentFiles:
    """The files of a message, of an answer, or of the message of a fork. `name`: of their directory."""

    name: str
    files: Sequence[workspace_pb2.InputFile]
    submitted: list[workspace_pb2.SubmittedFile]

    @classmethod
    def of(cls, request: api.SendMessageRequest | api.ResumeTaskRequest | api.ForkTaskRequest) -> SentFiles:
        """Returns the files of a request."""
        files = [submitted_file(file.path, file.content) for file in request.files]
        name = message_name(request.request_id, files)
        return cls(name, request.files, [submitted_file_to_wire(of_message(name, file)) for file in files])

    async def put(self, peers: Peers, task_id: str) -> None:
        """Puts the files into the workspace. Raises WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE)."""
        if self.files:
            await _put(peers, tools.PutFilesRequest(task_id=task_id, files=self.files, message=self.name))


async def append_with_files(
    peers: Peers, request: api.SendMessageRequest | api.ResumeTaskRequest, sent: SentFiles, **fact: Any
) -> task_pb2.Task:
    """Records a message or an answer whose files are in place before the agent reads it.

    Raises as the ledger does, WORKSPACE_LIMIT and WORKSPACE_UNREADABLE.
    """
    append = partial(append_external, peers, request.task_id, request.request_id, **fact)
    if sent.files:
        await append(only_check=True)
        await sent.put(peers, request.task_id)
    return (await append()).task


async def _put(peers: Peers, request: tools.PutFilesRequest) -> None:
    await with_retries(lambda: peers.tools.PutFiles(request, timeout=COPY_TIMEOUT_SECONDS))


# Files of tasks: the ledger knows the tenant of a task, the tool service has its workspace.

READ_TIMEOUT_SECONDS: Final = 600.0
"""The limit of one stream. A slower reader continues with another stream."""


async def list_files(peers: Peers, request: api.ListFilesRequest) -> api.ListFilesResponse:
    """Returns a page of files. Raises NotFound, WrongState and InvalidRequest."""
    if not request.page_token:
        await read_task(peers, request.task_id)
    return await with_retries(lambda: peers.tools.ListFiles(request))


async def read_file(peers: Peers, request: api.ReadFileRequest) -> AsyncGenerator[api.ReadFileResponse, None]:
    """Yields a file in parts. Raises NotFound, WrongState, InvalidRequest, OutOfRange, LimitReached and Unavailable."""
    await read_task(peers, request.task_id)
    call: Any = peers.tools.ReadFile(request, timeout=READ_TIMEOUT_SECONDS)  # grpcio's types for calls are wrong
    try:
        async for part in call:
            yield part
    except Unavailable as error:
        raise out_of_reach(error) from error
    finally:
        call.cancel()


# WaitTask: waits on a stream of the ledger that reports only the end of the task, instead of polling.


async def wait_for_end(
    peers: Peers, task_id: str, timeout_seconds: float, stopping: asyncio.Event
) -> api.WaitTaskResponse:
    """Waits until the task has ended, the time is over or this gateway drains.

    In the last two cases `ended` is false, and the caller asks again.
    """
    task = await read_task(peers, task_id)
    if not _ended(task):
        await _until_closed(peers, task, timeout_seconds, stopping)
        task = await read_task(peers, task_id)
    return api.WaitTaskResponse(task=task, ended=_ended(task))


async def _until_closed(peers: Peers, task: task_pb2.Task, timeout_seconds: float, stopping: asyncio.Event) -> None:
    closed = asyncio.create_task(_closed(peers, task.task_id, task.sequence))
    drained = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({closed, drained}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if closed.done():
            closed.result()
    finally:
        closed.cancel()
        drained.cancel()
        await asyncio.gather(closed, drained, return_exceptions=True)


async def _closed(peers: Peers, task_id: str, after_sequence: int) -> None:
    async with aclosing(follow_entries(peers, task_id, after_sequence, closing_only=True)) as pages:
        async for _page in pages:
            pass


def _ended(task: task_pb2.Task) -> bool:
    return is_terminal(STATES.to_domain(task.state))


DEFAULT_WAIT_SECONDS: Final = 30.0


class TaskServicer(Forwarder):
    """Serves TaskService without state of its own. `stopping` ends the streams when the process drains."""

    def __init__(self, peers: Peers, live: LiveTextRelay, stopping: asyncio.Event, heartbeat_seconds: float) -> None:
        super().__init__("TaskService", peers)
        self._live, self._stopping = live, stopping
        self._heartbeat_seconds = heartbeat_seconds

    async def SubmitTask(self, request: api.SubmitTaskRequest, _context: Any) -> api.SubmitTaskResponse:
        """Submits a task. Its request id makes the retries behind the gateway safe."""
        files = [submitted_file_to_wire(submitted_file(file.path, file.content)) for file in request.files]
        create = ledger.CreateTaskRequest(
            request_id=request.request_id, spec=request.spec, traceparent=traceparent(), files=files
        )
        check = check_tool_names(self._peers, request.spec)
        if earlier := await earlier_result(self._peers, check, ledger.FindRepeatRequest(create_task=create)):
            return api.SubmitTaskResponse(task=earlier.task)
        if files:
            return await submit_with_files(self._peers, request, create)
        created = await with_retries(lambda: self._peers.checkpoint.CreateTask(create))
        return api.SubmitTaskResponse(task=created.task)

    async def WaitTask(self, request: api.WaitTaskRequest, _context: Any) -> api.WaitTaskResponse:
        timeout = seconds(request.timeout) if request.HasField("timeout") else DEFAULT_WAIT_SECONDS
        return await wait_for_end(self._peers, request.task_id, timeout, self._stopping)

    async def WatchTask(self, request: api.WatchTaskRequest, _context: Any) -> AsyncIterator[api.WatchTaskResponse]:
        async with (
            WatchTaskStream(self._peers, self._live, request, self._stopping) as watch,
            aclosing(watch.events(self._heartbeat_seconds)) as events,
        ):
            async for event in events:
                yield event

    async def WatchTasks(self, request: api.WatchTasksRequest, _context: Any) -> AsyncIterator[api.WatchTasksResponse]:
        async with (
            WatchTasksStream(self._peers, request, self._stopping) as watch,
            aclosing(watch.events(self._heartbeat_seconds)) as events,
        ):
            async for event in events:
                yield event

    async def CancelTask(self, request: api.CancelTaskRequest, _context: Any) -> api.CancelTaskResponse:
        """Records a cancel request in the ledger. Coordinators find it there, whatever happens to this gateway."""
        cancel = ledger_pb2.CancelRequest(reason=request.reason)
        appended = await append_external(self._peers, request.task_id, new_id(), cancel_request=cancel)
        return api.CancelTaskResponse(task=appended.task)

    async def ResumeTask(self, request: api.ResumeTaskRequest, _context: Any) -> api.ResumeTaskResponse:
        """Answers a wait.

        A signal finds its task by the correlation id; a person's answer names the task and the wait.
        """
        if request.correlation_id:
            event = ledger.SendSignalRequest(actor=caller())
            copy_shared(request, event)
            signalled = await with_retries(lambda: self._peers.checkpoint.SendSignal(event))
            return api.ResumeTaskResponse(task=signalled.task if signalled.HasField("task") else None)
        if request.plan.when:
            await check_expression(self._peers, request.plan)
        sent = SentFiles.of(request)
        answer = ledger.WaitAnswer(files=sent.submitted)
        copy_shared(request, answer)
        return api.ResumeTaskResponse(task=await append_with_files(self._peers, request, sent, wait_answer=answer))

    async def SendMessage(self, request: api.SendMessageRequest, _context: Any) -> api.SendMessageResponse:
        sent = SentFiles.of(request)
        message = ledger_pb2.UserMessage(text=request.text, files=sent.submitted, interrupt=request.interrupt)
        return api.SendMessageResponse(task=await append_with_files(self._peers, request, sent, user_message=message))

    async def ForkTask(self, request: api.ForkTaskRequest, _context: Any) -> api.ForkTaskResponse:
        sent = SentFiles.of(request)
        fork = api.ForkTaskRequest(message_files=sent.submitted)
        fork.MergeFrom(request)
        fork.ClearField("files")
        check = check_names_of_fork(self._peers, fork.task_id, fork.overrides)
        if earlier := await earlier_result(self._peers, check, ledger.FindRepeatRequest(fork_task=fork)):
            return api.ForkTaskResponse(task=earlier.task)
        return await fork_task(self._peers, fork, sent)

    async def PlanUndo(self, request: api.PlanUndoRequest, _context: Any) -> api.PlanUndoResponse:
        return await plan_undo(self._peers, request)

    async def UndoTask(self, request: api.UndoTaskRequest, _context: Any) -> api.UndoTaskResponse:
        return await undo_task(self._peers, request)

    async def ListCallPlans(self, request: api.ListCallPlansRequest, _context: Any) -> api.ListCallPlansResponse:
        return await list_call_plans(self._peers, request)

    async def EndCallPlan(self, request: api.EndCallPlanRequest, _context: Any) -> api.EndCallPlanResponse:
        return await end_call_plan(self._peers, request)

    async def ListFiles(self, request: api.ListFilesRequest, _context: Any) -> api.ListFilesResponse:
        return await list_files(self._peers, request)

    async def ReadFile(self, request: api.ReadFileRequest, _context: Any) -> AsyncIterator[api.ReadFileResponse]:
        async with aclosing(read_file(self._peers, request)) as parts:
            async for part in parts:
                yield part

    async def ExplainTask(self, request: api.ExplainTaskRequest, _context: Any) -> api.ExplainTaskResponse:
        return await explain_task(self._peers, request.task_id)
