"""TaskService: what backends call. Each method says in words of the ledger what the caller asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import uuid_utils

from services.gateway.explaining import explain_task
from services.gateway.files import list_files, read_file
from services.gateway.forking import fork_task
from services.gateway.live import LiveText
from services.gateway.peers import Peers, patiently, read_task
from services.gateway.task_changes import TasksWatch
from services.gateway.tool_names import check_names_of_fork, check_tool_names
from services.gateway.waiting import wait_for_end
from services.gateway.watching import Watch
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceServicer
from tenure.wire.times import seconds

DEFAULT_WAIT_SECONDS: Final = 30.0


class TaskServicer(TaskServiceServicer):
    """Holds nothing but its peers. `stopping` ends streams when the process drains."""

    def __init__(self, peers: Peers, live: LiveText, stopping: asyncio.Event, heartbeat_seconds: float) -> None:
        self._peers, self._live, self._stopping = peers, live, stopping
        self._heartbeat_seconds = heartbeat_seconds

    async def SubmitTask(self, request: api.SubmitTaskRequest, _context: Any) -> api.SubmitTaskResponse:
        """Without a request_id of the caller's, ours still makes the retries behind this call safe."""
        await check_tool_names(self._peers, request.agent)
        create = ledger.CreateTaskRequest(request_id=request.request_id or new_id(), spec=_spec(request))
        created = await patiently(lambda: self._peers.checkpoint.CreateTask(create))
        return api.SubmitTaskResponse(task=created.task)

    async def GetTask(self, request: api.GetTaskRequest, _context: Any) -> api.GetTaskResponse:
        return api.GetTaskResponse(task=await read_task(self._peers, request.task_id))

    async def WaitTask(self, request: api.WaitTaskRequest, _context: Any) -> api.WaitTaskResponse:
        timeout = seconds(request.timeout) if request.HasField("timeout") else DEFAULT_WAIT_SECONDS
        return await wait_for_end(self._peers, request.task_id, timeout, self._stopping)

    async def ListTasks(self, request: api.ListTasksRequest, _context: Any) -> api.ListTasksResponse:
        asked = ledger.CheckpointServiceListTasksRequest(
            filter=request.filter, page_size=request.page_size, page_token=request.page_token, order=request.order
        )
        page = await patiently(lambda: self._peers.checkpoint.ListTasks(asked))
        return api.ListTasksResponse(tasks=page.tasks, next_page_token=page.next_page_token)

    async def ListTaskEntries(self, request: api.ListTaskEntriesRequest, _context: Any) -> api.ListTaskEntriesResponse:
        asked = ledger.ListEntriesRequest(
            task_id=request.task_id, after_sequence=request.after_sequence, page_size=request.page_size
        )
        page = await patiently(lambda: self._peers.checkpoint.ListEntries(asked))
        return api.ListTaskEntriesResponse(entries=page.entries, more=page.more)

    async def WatchTask(self, request: api.WatchTaskRequest, _context: Any) -> AsyncIterator[api.WatchTaskResponse]:
        async with (
            Watch(self._peers, self._live, request, self._stopping) as watch,
            aclosing(watch.events(self._heartbeat_seconds)) as events,
        ):
            async for event in events:
                yield event

    async def WatchTasks(self, request: api.WatchTasksRequest, _context: Any) -> AsyncIterator[api.WatchTasksResponse]:
        async with (
            TasksWatch(self._peers, request, self._stopping) as watch,
            aclosing(watch.events(self._heartbeat_seconds)) as events,
        ):
            async for event in events:
                yield event

    async def CancelTask(self, request: api.CancelTaskRequest, _context: Any) -> api.CancelTaskResponse:
        """Persisting the request is the whole of it: coordinators find it in the ledger, whatever happens to us."""
        fact = ledger.AppendForeignRequest(
            task_id=request.task_id,
            request_id=new_id(),
            actor=caller(),
            cancel_request=ledger_pb2.CancelRequest(reason=request.reason),
        )
        done = await patiently(lambda: self._peers.checkpoint.AppendForeign(fact))
        return api.CancelTaskResponse(task=done.task)

    async def ResumeTask(self, request: api.ResumeTaskRequest, _context: Any) -> api.ResumeTaskResponse:
        """An event finds its task by its name; a person's answer names the task and the wait that it is for."""
        request_id = request.request_id or new_id()
        if request.correlation_id:
            event = ledger.SendSignalRequest(
                correlation_id=request.correlation_id,
                request_id=request_id,
                actor=caller(),
                payload_json=request.payload_json,
            )
            sent = await patiently(lambda: self._peers.checkpoint.SendSignal(event))
            return api.ResumeTaskResponse(task=sent.task if sent.HasField("task") else None)
        fact = ledger.AppendForeignRequest(
            task_id=request.task_id, request_id=request_id, actor=caller(), wait_answer=_answer(request)
        )
        done = await patiently(lambda: self._peers.checkpoint.AppendForeign(fact))
        return api.ResumeTaskResponse(task=done.task)

    async def SendMessage(self, request: api.SendMessageRequest, _context: Any) -> api.SendMessageResponse:
        fact = ledger.AppendForeignRequest(
            task_id=request.task_id,
            request_id=request.request_id or new_id(),
            actor=caller(),
            user_message=ledger_pb2.UserMessage(text=request.text),
        )
        done = await patiently(lambda: self._peers.checkpoint.AppendForeign(fact))
        return api.SendMessageResponse(task=done.task)

    async def ForkTask(self, request: api.ForkTaskRequest, _context: Any) -> api.ForkTaskResponse:
        await check_names_of_fork(self._peers, request.task_id, request.overrides)
        asked = ledger.CheckpointServiceForkTaskRequest(
            request_id=request.request_id or new_id(),
            task_id=request.task_id,
            message=request.message,
            overrides=request.overrides,
            actor=caller(),
        )
        if (point := request.WhichOneof("point")) is not None:
            setattr(asked, point, getattr(request, point))
        return await fork_task(self._peers, asked, with_files=not request.without_files)

    async def ListFiles(self, request: api.ListFilesRequest, _context: Any) -> api.ListFilesResponse:
        return await list_files(self._peers, request)

    async def ReadFile(self, request: api.ReadFileRequest, _context: Any) -> AsyncIterator[api.ReadFileResponse]:
        async with aclosing(read_file(self._peers, request)) as parts:
            async for part in parts:
                yield part

    async def ExplainTask(self, request: api.ExplainTaskRequest, _context: Any) -> api.ExplainTaskResponse:
        return await explain_task(self._peers, request.task_id)


def new_id() -> str:
    """A UUIDv7."""
    return str(uuid_utils.uuid7())


def caller() -> str:
    """Who is recorded as the author of what this call does. Until there is authentication: the tenant."""
    return f"tenant/{current_tenant()}"


def _answer(request: api.ResumeTaskRequest) -> ledger.WaitAnswer:
    answer = ledger.WaitAnswer(
        wait_id=request.wait_id,
        comment=request.comment,
        edited_arguments_json=request.edited_arguments_json,
        extra_budget_tokens=request.extra_budget_tokens,
        call_digest=request.call_digest,
    )
    if request.WhichOneof("answer") == "reply":
        answer.reply = request.reply
    else:
        answer.decision = request.decision
    return answer


def _spec(request: api.SubmitTaskRequest) -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(
        goal=request.goal,
        agent=request.agent,
        limits=request.limits,
        policy=request.policy,
        priority=request.priority,
        queue=request.queue,
        labels=dict(request.labels),
        source=request.source,
        control=request.control if request.HasField("control") else None,
        result_schema_json=request.result_schema_json,
        start_time=request.start_time if request.HasField("start_time") else None,
    )
