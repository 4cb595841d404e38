"""The handlers of the routes for tasks. Each makes the call of the same gRPC method."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from services.gateway.http import answers
from services.gateway.http import requests as req
from services.gateway.http.call import HttpCall
from tenure.domain.entries import Entry
from tenure.domain.errors import InvalidRequest
from tenure.domain.prompts import is_answer, parts_of, prompt_of
from tenure.sdk.errors import api_errors
from tenure.sdk.from_wire import entry_event, task_counts, task_file, task_info, task_page
from tenure.sdk.option_values import files as input_files
from tenure.sdk.option_values import json_text, nano_usd
from tenure.sdk.submit_options import FORK_OPTIONS, PARAMETERS, argument_of
from tenure.sdk.submit_request import function_request, overrides_of, submit_request
from tenure.sdk.task_filter import RANGES, source_of, task_filter
from tenure.sdk.task_info import TaskCounts, TaskInfo, TaskPage
from tenure.sdk.traces import Trace, entries_of, read_spans, trace_of
from tenure.v1 import task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.codec import writer
from tenure.wire.common import duration
from tenure.wire.ledger import read_entries

FORK_SECONDS: Final = 150.0
_OF_LEDGER: Final = "plan_id same_values approved_by approve_time lasts"
_plan = writer(req.CallPlanBody, tool_pb2.CallPlan, rename={"ends_at": "end_time"}, skip=_OF_LEDGER)
MAX_TRACED: Final = 200
"""The tasks of a tree whose ledgers one answer is projected from."""
MAX_SPANS: Final = 5_000
_WAIT_MARGIN_SECONDS: Final = 15.0
_WAITING: Final = (task_pb2.TASK_STATE_WAITING_USER, task_pb2.TASK_STATE_WAITING_EXTERNAL)


def submit_of(body: req.SubmitBody, request_id: str = "") -> api.SubmitTaskRequest:
    """Returns the request of a submit. Raises InvalidRequest."""
    options = {"request_id": request_id} | body.options
    if not body.function:
        schema_json = "" if body.result is None else json_text("result", body.result)
        return submit_request(body.goal, options, agent=body.agent, input=body.input, result_schema_json=schema_json)
    if body.agent or body.result is not None or options.keys() & {"tools", "system", *PARAMETERS}:
        message = f"cannot have agent, tools, system, result, {', '.join(PARAMETERS)} beside it"
        raise InvalidRequest(violations=[("function", message)])
    return function_request(body.function, body.input, body.goal, options)


async def submit(call: HttpCall, _query: req.NoQuery, body: req.SubmitBody) -> TaskInfo:
    return task_info(await submitted(call, body, call.request_id))


async def submitted(call: HttpCall, body: req.SubmitBody, request_id: str) -> task_pb2.Task:
    """Submits a task. A refusal names the fields of the body."""
    with api_errors("", argument_of):
        answer = await call.one(call.stubs.tasks.SubmitTask, submit_of(body, request_id))
    task: task_pb2.Task = answer.task
    return task


async def list_tasks(call: HttpCall, query: req.TasksQuery, _body: None) -> TaskPage:
    wanted = filter_of(query)
    order = task_pb2.TaskOrder.Value(f"TASK_ORDER_{query.order}")
    return await _page(call, wanted, query, order, fresh=query.fresh)


def filter_of(query: req.TaskSelection) -> task_pb2.TaskFilter:
    """Returns the filter of a query string, or of a body. Raises InvalidRequest.

    That of a webhook has no states: its event types select them.
    """
    return task_filter(
        state=query.state if isinstance(query, req.OfStates) else (),
        labels=query.label,
        queue=query.queue,
        source=source_of(query.source) if query.source else None,
        root_task_id=query.root_task_id,
        forked_from_task_id=query.forked_from_task_id,
        reason=query.reason,
        agent=query.agent,
        task_ids=query.task_id,
        output_kind=query.output_kind,
        output_uri=query.output_uri,
        **{name: getattr(query, name) for name in RANGES},
    )


async def count(call: HttpCall, query: req.TaskFilterQuery, _body: None) -> TaskCounts:
    """The numbers of tasks by state."""
    wanted = filter_of(query)
    return task_counts(await call.one(call.stubs.tasks.CountTasks, api.CountTasksRequest(filter=wanted)))


async def read_task(call: HttpCall) -> task_pb2.Task:
    """Returns the task of the path. Raises NotFound."""
    answer = await call.one(call.stubs.tasks.GetTask, api.GetTaskRequest(task_id=call.path("task_id")))
    task: task_pb2.Task = answer.task
    return task


async def entries(call: HttpCall, query: req.EntriesQuery, _body: None) -> answers.EntryPage:
    request = api.ListTaskEntriesRequest(
        task_id=call.path("task_id"), after_sequence=query.after_sequence, page_size=query.limit, kinds=query.kind
    )
    page = await call.one(call.stubs.tasks.ListTaskEntries, request)
    return answers.EntryPage(tuple(map(entry_event, page.entries)), page.more)


async def tree(call: HttpCall, query: req.Page, _body: None) -> TaskPage:
    """The tasks of the whole tree that the task belongs to."""
    task = await read_task(call)
    root = task.root_task_id or task.task_id
    return await _page(call, task_pb2.TaskFilter(root_task_id=root), query, task_pb2.TASK_ORDER_NEWEST)


async def trace(call: HttpCall, _query: req.NoQuery, _body: None) -> Trace:
    reading = read_spans(call.one, call.stubs.tasks, call.stubs.admin, call.path("task_id"), most_tasks=MAX_TRACED)
    spans, more = await call.while_connected(reading)
    return trace_of(spans, most_spans=MAX_SPANS, more=more)


async def prompt(call: HttpCall, query: req.PromptQuery, _body: None) -> answers.StepPrompt:
    made = prompt_of(await call.while_connected(_entries_to_answer(call, query.step)), query.step)
    messages = (answers.PromptMessage(one["role"], tuple(parts_of(one))) for one in made.messages)
    return answers.StepPrompt(query.step, made.model, made.system, made.tools, tuple(messages))


async def _entries_to_answer(call: HttpCall, step: int) -> list[Entry]:
    """Returns the entries from the first one to the answer of the step, or all."""
    read: list[Entry] = []
    async for message in entries_of(call.one, call.stubs.tasks, call.path("task_id")):
        read += read_entries([message])
        if is_answer(read[-1], step):
            break
    return read


async def wait(call: HttpCall, query: req.WaitQuery, _body: None) -> answers.Waited:
    seconds = query.timeout_seconds
    request = api.WaitTaskRequest(task_id=call.path("task_id"), timeout=duration(seconds))
    waiting = call.one(call.stubs.tasks.WaitTask, request, timeout=max(seconds, 0.0) + _WAIT_MARGIN_SECONDS)
    waited = await call.while_connected(waiting)
    return answers.Waited(waited.ended, task_info(waited.task))


async def fork(call: HttpCall, _query: req.NoQuery, body: req.ForkBody) -> TaskInfo:
    overrides = overrides_of({name: getattr(body, name) for name in FORK_OPTIONS})
    overrides.all_tools = body.all_tools
    if body.result is not None:
        overrides.result_schema_json = "" if body.result == "" else json_text("result", body.result)
    request = api.ForkTaskRequest(
        request_id=body.request_id or call.request_id,
        task_id=call.path("task_id"),
        message=body.message,
        files=input_files("files", body.files),
        overrides=overrides,
        without_files=body.without_files,
    )
    if body.at_sequence is not None:
        request.at_sequence = body.at_sequence
    if body.step is not None:
        if body.at_sequence is not None:
            raise InvalidRequest(violations=[("step", "cannot be given with at_sequence")])
        request.step = body.step
    return await _task(call, call.stubs.tasks.ForkTask, request, timeout=FORK_SECONDS)


async def resume(call: HttpCall, _query: req.NoQuery, body: req.AnswerBody) -> TaskInfo:
    """Answers the wait of the task."""
    calls = [
        task_pb2.CallDecision(
            call_id=call.call_id,
            decision=call.decision,
            call_digest=call.call_digest,
            comment=call.comment,
            edited_arguments_json=_edited(call.edited_arguments),
        )
        for call in body.calls
    ]
    request = api.ResumeTaskRequest(
        task_id=call.path("task_id"),
        wait_id=body.wait_id,
        call_digest=body.call_digest,
        request_id=body.request_id or call.request_id,
        comment=body.comment,
        edited_arguments_json=_edited(body.edited_arguments),
        extra_budget_tokens=body.extra_tokens,
        extra_budget_nano_usd=nano_usd("extra_cost", body.extra_cost),
        calls=calls,
        files=input_files("files", body.files),
        plan=None if body.plan is None else _plan(body.plan),
    )
    if body.decision and body.reply:
        raise InvalidRequest(violations=[("reply", "cannot be given with decision")])
    if body.decision:
        request.decision = body.decision
    elif body.reply or not calls:
        request.reply = body.reply
    return await _task(call, call.stubs.tasks.ResumeTask, request)


def _edited(arguments: Mapping[str, Any] | None) -> str:
    return "" if arguments is None else json.dumps(dict(arguments), ensure_ascii=False)


async def signal(call: HttpCall, _query: req.NoQuery, body: req.SignalBody) -> answers.Signalled:
    request = api.ResumeTaskRequest(
        correlation_id=body.correlation_id,
        request_id=body.request_id or call.request_id,
        payload_json=json_text("payload", body.payload),
    )
    sent = await call.one(call.stubs.tasks.ResumeTask, request)
    return answers.Signalled(sent.HasField("task"), sent.task.task_id)


async def waits(call: HttpCall, query: req.WaitsQuery, _body: None) -> TaskPage:
    """The tasks that wait, the earliest deadline first."""
    wanted = task_pb2.TaskFilter(states=_WAITING if query.external else _WAITING[:1])
    # What a person has answered must not be asked again, so the inbox is never stale.
    return await _page(call, wanted, query, task_pb2.TASK_ORDER_WAIT_DEADLINE, fresh=True)


# Files.


async def files(call: HttpCall, query: req.FilesQuery, _body: None) -> answers.FileListPage:
    request = api.ListFilesRequest(
        task_id=call.path("task_id"),
        path=query.path,
        page_size=query.page_size,
        page_token=query.page_token,
    )
    page = await call.one(call.stubs.tasks.ListFiles, request)
    usage = page.usage if page.HasField("usage") else None
    return answers.FileListPage(
        tuple(map(task_file, page.files)),
        page.next_page_token,
        *((None,) * 4 if usage is None else (usage.used_bytes, usage.used_files, usage.max_bytes, usage.max_files)),
    )


async def read_file(call: HttpCall, query: req.FileQuery, _body: None) -> Response:
    """Streams a file. A page must not run what an agent wrote: the browser saves it, and its scripts have no origin."""
    version = query.version.strip('"')  # as the header has it
    request = api.ReadFileRequest(
        task_id=call.path("task_id"), path=call.path("path"), offset=query.offset, version=version
    )
    parts = call.many(call.stubs.tasks.ReadFile, request)
    first = await anext(parts)
    headers = {
        "content-length": str(first.header.size_bytes - query.offset),
        "content-disposition": "attachment",
        "content-security-policy": "sandbox; default-src 'none'",
        "etag": json.dumps(first.header.version),
    }
    return StreamingResponse(_content(parts), headers=headers, media_type="application/octet-stream")


async def _content(parts: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    async with aclosing(parts):
        async for part in parts:
            yield part.content


_RECEIPTS_PAGE: Final = 500


async def receipts(call: HttpCall, query: req.ReceiptsQuery, _body: None) -> Response:
    """The lines of a file of receipts, whose exact bytes are signed."""
    lines, more = list[str](), True
    request = api.GetReceiptsRequest(task_id=call.path("task_id"), call_id=query.call_id, page_size=_RECEIPTS_PAGE)
    while more:
        page = await call.one(call.stubs.tasks.GetReceipts, request)
        lines += [*page.receipts, *([page.head] if page.head else ())]
        request.after_number += len(page.receipts)
        more = page.more
    headers = {"content-disposition": 'attachment; filename="receipts.jsonl"'}
    return Response("".join(f"{line}\n" for line in lines), headers=headers, media_type="application/jsonl")


# Parts of the handlers.


async def _task(call: HttpCall, method: Any, request: Any, *, timeout: float | None = None) -> TaskInfo:
    return task_info((await call.one(method, request, timeout=timeout)).task)


async def _page(
    call: HttpCall,
    wanted: task_pb2.TaskFilter,
    page: req.Page,
    order: task_pb2.TaskOrder.ValueType,
    *,
    fresh: bool = False,
) -> TaskPage:
    request = api.ListTasksRequest(
        filter=wanted, page_size=page.page_size, page_token=page.page_token, order=order, fresh=fresh
    )
    listed = await call.one(call.stubs.tasks.ListTasks, request)
    return task_page(listed)
