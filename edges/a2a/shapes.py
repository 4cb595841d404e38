"""Tasks in the words of A2A 1.0 (https://a2a-protocol.org), as JSON of its HTTP+JSON binding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from edges.chats.ai_chat import approvals_of
from services.gateway.http.call import HttpCall
from services.gateway.http.problems import HttpRefusal, status_of
from tenure.domain.errors import InvalidRequest, NotFound, TenureError
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.task import SourceKind
from tenure.domain.waits import WaitKind
from tenure.sdk.events import AssistantMessageEvent, Event, TransitionEvent
from tenure.sdk.from_wire import task_info
from tenure.sdk.task_info import TaskInfo, TaskWait
from tenure.v1 import task_pb2
from tenure.wire.common import SOURCES, STATES

_STATES: Final = {
    TaskState.WAITING_USER: "TASK_STATE_INPUT_REQUIRED",
    TaskState.SUCCEEDED: "TASK_STATE_COMPLETED",
    TaskState.CANCELLED: "TASK_STATE_CANCELED",
    **dict.fromkeys((TaskState.FAILED, TaskState.TIMED_OUT, TaskState.COST_EXCEEDED), "TASK_STATE_FAILED"),
}
SUBMITTED: Final = "TASK_STATE_SUBMITTED"
WORKING: Final = "TASK_STATE_WORKING"
"""The state of everything else: the agent works, waits for a worker, an event or sub-agents, or will try again."""
WIRE_STATES: Final = {
    SUBMITTED: (STATES.to_wire(TaskState.QUEUED),),
    WORKING: tuple(STATES.to_wire(state) for state in TaskState if state not in _STATES),
    **{name: tuple(STATES.to_wire(state) for state in _STATES if _STATES[state] == name) for name in _STATES.values()},
    "TASK_STATE_REJECTED": (),
    "TASK_STATE_AUTH_REQUIRED": (),
}
"""The states of tasks that may have each state of A2A. A queued task may be SUBMITTED or WORKING."""
_NEW: Final = frozenset({Reason.SUBMITTED, Reason.FORKED})
"""The reasons for which a task that has begun nothing is queued."""
ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
UNSUPPORTED: Final = "UNSUPPORTED_OPERATION"
NOT_CANCELABLE: Final = "TASK_NOT_CANCELABLE"
NO_PUSH: Final = "PUSH_NOTIFICATION_NOT_SUPPORTED"
_OWN_REASONS: Final = frozenset(
    {UNSUPPORTED, NOT_CANCELABLE, NO_PUSH, "VERSION_NOT_SUPPORTED", "CONTENT_TYPE_NOT_SUPPORTED"}
)
_GRPC_NAMES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def refusal(reason: str, message: str) -> HttpRefusal:
    """Returns an error with a reason of A2A."""
    return HttpRefusal(HTTPStatus.BAD_REQUEST, reason, message)


def base_url_of(call: HttpCall) -> str:
    """Returns the address of the gateway, as the client wrote it."""
    return str(call.request.base_url).rstrip("/")


def context_of(task: task_pb2.Task) -> str:
    """Returns the context of a task: its conversation, or else its tree."""
    source = task.spec.source
    if source.kind == SOURCES.to_wire(SourceKind.CONVERSATION) and source.source_id:
        return source.source_id
    return task.root_task_id or task.task_id


def state_of(task: task_pb2.Task) -> str:
    """Returns the state of a task in A2A."""
    return _state(STATES.to_domain(task.state), task.reason)


def task_json(
    task: task_pb2.Task,
    *,
    base_url: str,
    starts: bool = False,
    history: Sequence[dict[str, Any]] = (),
    with_artifacts: bool = True,
) -> dict[str, Any]:
    """Returns a task. `starts`: as it is when a turn begins, whose updates follow. `base_url`: of the gateway."""
    info = task_info(task)
    identity = {"id": task.task_id, "contextId": context_of(task)}
    if starts:
        return {**identity, "status": {"state": SUBMITTED}}
    answer: dict[str, Any] = {**identity, "status": _status(task, info, info.sequence, info.updated_at)}
    artifacts = [_artifact(info.result, info.result_data)] if info.result else []
    if with_artifacts and (artifacts := [*artifacts, *output_artifacts(task, base_url)]):
        answer["artifacts"] = artifacts
    if history:
        answer["history"] = list(history)
    return answer


def updates_of(task: task_pb2.Task, event: Event) -> Iterator[dict[str, Any]]:
    """Yields the updates of a stream that an event is."""
    identity = {"taskId": task.task_id, "contextId": context_of(task)}
    match event:
        case AssistantMessageEvent() if event.text:
            said = agent_message(task, f"{event.sequence}", [{"text": event.text}])
            yield {"statusUpdate": {**identity, "status": {"state": WORKING, "message": said}}}
        case TransitionEvent():
            if event.state in TERMINAL and event.result:
                artifact = _artifact(event.result, event.result_data)
                yield {"artifactUpdate": {**identity, "artifact": artifact, "lastChunk": True}}
            status = _status(task, event, event.sequence or 0, event.recorded_at)
            yield {"statusUpdate": {**identity, "status": status}}


def _state(state: TaskState, reason: str) -> str:
    is_new = state is TaskState.QUEUED and reason in _NEW
    return SUBMITTED if is_new else _STATES.get(state, WORKING)


def _status(task: task_pb2.Task, now: TaskInfo | TransitionEvent, sequence: int, at: datetime | None) -> dict[str, Any]:
    """Returns the status of a task as it is, or after a transition."""
    status: dict[str, Any] = {"state": _state(now.state, now.reason)}
    if at is not None:
        status["timestamp"] = at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if now.state is TaskState.WAITING_USER and now.wait is not None:
        status["message"] = question_message(task, now.wait)
    elif now.state in TERMINAL and now.state is not TaskState.SUCCEEDED and now.message:
        status["message"] = agent_message(task, f"{sequence}", [{"text": now.message}])
    return status


def question_message(task: task_pb2.Task, wait: TaskWait) -> dict[str, Any]:
    """Returns a wait as a message: a text for people; for the approval of a call, what would be called, too.

    Several calls have a part each. Its id is the same in a stream, in the status and in the history.
    """
    parts: list[dict[str, Any]] = [{"text": wait.question or f"{wait.tool} needs approval"}]
    if wait.kind is WaitKind.TOOL_APPROVAL:
        for identity, call in approvals_of(task.task_id, wait):
            pending_call = {"approvalId": identity, "tool": call.tool, "arguments": call.arguments}
            parts.append({"data": pending_call, "mediaType": "application/json"})
    return agent_message(task, wait.wait_id, parts)


def agent_message(task: task_pb2.Task, name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a message of the agent. `name`: the sequence of its entry, or its wait: unique in the task."""
    identity = {"messageId": f"{task.task_id}/{name}", "taskId": task.task_id, "contextId": context_of(task)}
    return {**identity, "role": "ROLE_AGENT", "parts": parts}


def _artifact(result: str, data: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": result}]
    if data is not None:
        parts.append({"data": data, "mediaType": "application/json"})
    return {"artifactId": "result", "name": "result", "parts": parts}


def output_artifacts(task: task_pb2.Task, base_url: str) -> list[dict[str, Any]]:
    """Returns the outputs of a task. A file of the workspace has its address at the gateway, which asks for the key."""
    artifacts = []
    for output in task_info(task).outputs:
        part = {"url": output.uri}
        if path := output.path:
            url = f"{base_url}/v1/tasks/{task.task_id}/files/{quote(path)}"
            part = {"url": url, "filename": PurePosixPath(path).name}
        named = {"artifactId": output.call_id or output.uri, "name": output.kind, "description": output.description}
        artifacts.append({**named, "parts": [part]})
    return artifacts


def error_json(error: Exception) -> tuple[int, dict[str, Any]]:
    """Returns the status and the document of an error. Of a bug, it says nothing but that."""
    status = int(status_of(error))
    name = _GRPC_NAMES.get(status, "INTERNAL")
    if not isinstance(error, TenureError):
        message = "internal error; the log of the gateway has the details"
        return status, {"error": {"code": status, "status": "INTERNAL", "message": message}}
    if isinstance(error, HttpRefusal) and error.reason in _OWN_REASONS:
        reason, name = error.reason, "FAILED_PRECONDITION"
    elif isinstance(error, NotFound):
        reason = "TASK_NOT_FOUND"
    elif isinstance(error, InvalidRequest):
        reason = "INVALID_PARAMS"
    else:
        reason = error.reason
    detail = {"@type": ERROR_INFO, "reason": reason, "domain": "a2a-protocol.org", "metadata": {"code": error.reason}}
    return status, {"error": {"code": status, "status": name, "message": error.message, "details": [detail]}}
