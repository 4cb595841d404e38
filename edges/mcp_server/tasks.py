"""The extension io.modelcontextprotocol/tasks (SEP-2663): the call of `run` becomes a task of the protocol.

The id of the protocol's task is the id of the task in the ledger, which is there before it is returned. So a client
finds it after any restart, and each request is checked like any other request of the client: another tenant's task is
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field, ValidationError

from edges.mcp_server.answers import ACCEPT, DECLINE, answer, form_of, may_answer
from edges.mcp_server.server import RUN, RunArguments, TenureMcp, error_text
from tenure.domain.errors import InvalidRequest, NotFound, PermissionDenied, TenureError, WrongState
from tenure.domain.states import TaskState, is_terminal
from tenure.sdk.task import Task
from tenure.sdk.task_info import TaskInfo

IDENTIFIER: Final = "io.modelcontextprotocol/tasks"
POLL_INTERVAL_MS: Final = 1000
_VERSIONS: Final = frozenset(MODERN_PROTOCOL_VERSIONS)


class TaskParams(types.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(alias="taskId", max_length=64)


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`. The responses are a client's JSON, by the keys of the requests."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TasksExtension(Extension):
    """Serves the extension."""

    identifier = IDENTIFIER

    def __init__(self, tenure: TenureMcp) -> None:
        self._tenure = tenure

    def methods(self) -> Sequence[MethodBinding]:
        """Returns the three methods of the extension."""
        return (
            MethodBinding("tasks/get", TaskParams, self._get, _VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._update, _VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, _VERSIONS),
        )

    async def intercept_tool_call(
        self, params: types.CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Returns a task for `run`, to a client that knows tasks."""
        if params.name != RUN or not _knows_tasks(ctx):
            return await call_next(ctx)
        try:
            arguments = RunArguments.model_validate(params.arguments or {})
        except ValidationError:
            return await call_next(ctx)  # the tool says what is wrong
        try:
            task = await self._tenure.submit(ctx.request, arguments)
        except TenureError as error:
            return types.CallToolResult(content=[types.TextContent(type="text", text=error_text(error))], is_error=True)
        return {"resultType": "task", **_status(task.info), "status": "working"}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        task = await self._task(ctx, params.task_id)
        return {"resultType": "complete", **self._detailed(task.info)}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        """Answers the present wait. Responses to other requests are ignored, as the extension demands."""
        task = await self._task(ctx, params.task_id)
        wait = task.current_wait
        response = None if wait is None else params.input_responses.get(wait.wait_id)
        if wait is not None and isinstance(response, dict):
            try:
                with suppress(WrongState):  # it has its answer meanwhile
                    await self._answer(task, response)
            except TenureError as error:
                raise _protocol_error(error) from error
        return {"resultType": "complete"}

    async def _answer(self, task: Task[Any], response: dict[str, Any]) -> None:
        wait, action = task.current_wait, response.get("action")
        content = response.get("content")
        content = content if isinstance(content, dict) else {}
        if wait is None:
            return
        if action == ACCEPT and content.get("answer"):
            comment = str(content.get("comment") or "")
            await answer(task, wait, str(content["answer"]), comment, self._tenure.settings)
        elif action == DECLINE and may_answer(wait, self._tenure.settings) and "deny" in wait.options:
            await task.deny(wait, reason="the person declined")

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        task = await self._task(ctx, params.task_id)
        if not is_terminal(task.state):
            try:
                with suppress(WrongState):  # it ended meanwhile: the acknowledgement promises no more
                    await task.cancel(reason="tasks/cancel")
            except TenureError as error:
                raise _protocol_error(error) from error
        return {"resultType": "complete"}

    async def _task(self, ctx: ServerRequestContext[Any, Any], task_id: str) -> Task[Any]:
        require_client_extension(ctx, IDENTIFIER)
        try:
            return await self._tenure.task(ctx.request, task_id)
        except TenureError as error:
            raise _protocol_error(error) from error

    def _detailed(self, info: TaskInfo) -> dict[str, Any]:
        """Returns the task with what its status demands: the result, or the requests for input."""
        shown = _status(info)
        if info.state is TaskState.CANCELLED:
            return {**shown, "status": "cancelled"}
        if is_terminal(info.state):
            return {**shown, "status": "completed", "result": self._result(info)}
        if info.wait is not None and may_answer(info.wait, self._tenure.settings):
            return {**shown, "status": "input_required", "inputRequests": {info.wait.wait_id: form_of(info, info.wait)}}
        return {**shown, "status": "working"}

    def _result(self, info: TaskInfo) -> dict[str, Any]:
        """Returns the result of the call of `run`, as the tool itself returns it."""
        succeeded = info.state is TaskState.SUCCEEDED
        text = info.result if succeeded else f"{info.state}: {info.reason}: {info.message}"
        result = types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=self._tenure.view(info),
            is_error=not succeeded,
        )
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    capabilities = ctx.session.client_capabilities
    return bool(capabilities and capabilities.extensions and IDENTIFIER in capabilities.extensions)


def _status(info: TaskInfo) -> dict[str, Any]:
    what = f"{info.state}: {info.message}" if info.message else info.state.value
    if info.wait is not None:
        what = f"{what} (waits for {info.wait.kind}: {info.wait.question or info.wait.tool})"
    return {
        "taskId": info.task_id,
        "statusMessage": what[:1000],
        "createdAt": _time(info.created_at),
        "lastUpdatedAt": _time(info.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }


def _time(moment: datetime | None) -> str:
    return (moment or datetime.fromtimestamp(0, UTC)).astimezone(UTC).isoformat().replace("+00:00", "Z")


def _protocol_error(error: TenureError) -> MCPError:
    is_callers = isinstance(error, NotFound | InvalidRequest | PermissionDenied)
    return MCPError(code=types.INVALID_PARAMS if is_callers else types.INTERNAL_ERROR, message=str(error))
