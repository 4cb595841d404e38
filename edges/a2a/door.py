"""Tenure as an agent of A2A 1.0: the agent card, and the HTTP+JSON binding below /a2a.

A context is a conversation, as for the other protocols of chats; a task of A2A is a task. A message begins a task, or
is sent to the live task of its context or to the task that it names. A message that is sent again finds its turn again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from edges.a2a.history import history_of
from edges.a2a.listing import length_of_text, list_json
from edges.a2a.shapes import (
    NO_PUSH,
    NOT_CANCELABLE,
    UNSUPPORTED,
    base_url_of,
    context_of,
    error_json,
    output_artifacts,
    refusal,
    task_json,
    updates_of,
)
from edges.chats.ai_chat import Approval, answer_approvals
from edges.chats.conversation import TERMINAL_STATES, ChatThread, ChatTurn, message_request_id
from edges.chats.files import NOT_FETCHED, input_file
from edges.chats.turn import frame, is_end_of_turn
from services.gateway.http.body import parsed_json, raw_body
from services.gateway.http.call import HttpCall, Stubs
from services.gateway.http.edge import Door, HttpEdge
from services.gateway.http.event_stream import COMMENT, EventResponse, event_bytes
from services.gateway.http.json_text import json_bytes
from services.gateway.http.requests import SubmitBody
from services.gateway.http.shapes import read_json
from services.gateway.http.streams import EventWatch, first_parts
from tenure.domain.errors import InvalidRequest, TenureError, Unavailable, WrongState
from tenure.domain.images import MEDIA_TYPES
from tenure.domain.states import TERMINAL
from tenure.domain.task import InputFile
from tenure.runtime.release import VERSION
from tenure.runtime.rpc.status import PeerFailed
from tenure.sdk.events import TransitionEvent
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import duration

_log: Final = logging.getLogger(__name__)
PATH: Final = "/a2a"
CARD_PATH: Final = "/.well-known/agent-card.json"
MEDIA_TYPE: Final = "application/a2a+json"
MAX_ID: Final = 128
BLOCK_SECONDS: Final = 600.0
"""The longest time that message:send waits for the end of the turn; then it answers with the task as it is."""
CANCEL_SECONDS: Final = 10.0
_NO_PUSH: Final = "this agent sends no push notifications of A2A: a webhook of Tenure reports ended tasks and waits"
Check = Callable[[Request], None]
Handler = Callable[[HttpCall], Awaitable[Response]]


class A2aDoor:
    """The routes. `check`: of every request. `is_authenticated`: whether the gateway asks callers for a key."""

    def __init__(self, stubs: Stubs, check: Check, *, is_authenticated: bool) -> None:
        self._stubs, self._check, self._is_authenticated = stubs, check, is_authenticated

    def routes(self) -> list[Route]:
        """Returns the routes; those with a colon first."""
        task = f"{PATH}/tasks/{{task_id}}"
        return [
            Route(CARD_PATH, self._checked(self._card), methods=["GET"]),
            Route(f"{PATH}/message:send", self._checked(_send), methods=["POST"]),
            Route(f"{PATH}/message:stream", self._checked(_stream), methods=["POST"]),
            Route(f"{task}:cancel", self._checked(_cancel), methods=["POST"]),
            Route(f"{task}:subscribe", self._checked(_subscribe), methods=["GET", "POST"]),
            Route(task, self._checked(_get), methods=["GET"]),
            Route(f"{PATH}/tasks", self._checked(_list), methods=["GET"]),
            Route(f"{PATH}/{{rest:path}}", self._checked(_unsupported), methods=["GET", "POST", "DELETE"]),
        ]

    def _checked(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                self._check(request)
                _check_version(request)
                return await handler(HttpCall(request, self._stubs))
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # the client is gone
            except (TenureError, PeerFailed) as error:
                return _answer(*reversed(error_json(error)))
            except Exception as error:  # noqa: BLE001  a bug, which the log has with its stack
                _log.exception("unexpected error in %s %s", request.method, request.url.path)
                return _answer(*reversed(error_json(error)))

        return answer

    async def _card(self, call: HttpCall) -> Response:
        url = f"{base_url_of(call)}{PATH}"
        card: dict[str, Any] = {
            "name": "Tenure",
            "description": "Runs tasks of AI agents that survive crashes, and waits for people where they must decide.",
            "version": VERSION,
            "supportedInterfaces": [{"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}],
            "capabilities": {"streaming": True, "pushNotifications": False},
            "defaultInputModes": ["text/plain", *MEDIA_TYPES, "application/octet-stream"],
            "defaultOutputModes": ["text/plain", "application/json"],
            "skills": [
                {
                    "id": "task",
                    "name": "Run a task",
                    "description": "Works on the goal of the message.",
                    "tags": ["agent"],
                }
            ],
        }
        if self._is_authenticated:
            card["securitySchemes"] = {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
            card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
        return _answer(card, media_type="application/json")


def _check_version(request: Request) -> None:
    if request.headers.get("a2a-version", "1.").partition(".")[0] not in {"", "1"}:
        raise refusal("VERSION_NOT_SUPPORTED", "this agent speaks version 1.0 of A2A")


def _answer(document: dict[str, Any], status: int = 200, media_type: str = MEDIA_TYPE) -> Response:
    return Response(json_bytes(document), status, {"cache-control": "no-store"}, media_type)


async def _unsupported(call: HttpCall) -> Response:
    if "/pushNotificationConfigs" in call.request.url.path:
        raise refusal(NO_PUSH, _NO_PUSH)
    raise refusal(UNSUPPORTED, f"{call.request.method} {call.request.url.path} is not offered: see the agent card")


async def _body(call: HttpCall) -> dict[str, Any]:
    await call.known()
    raw = await raw_body(call.request)
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {"application/json", MEDIA_TYPE}:
        raise refusal("CONTENT_TYPE_NOT_SUPPORTED", f"the body must be {MEDIA_TYPE} or application/json")
    value = parsed_json(raw)
    if not isinstance(value, dict):
        raise InvalidRequest(violations=[("body", "must be an object")])
    return value


# Messages.


@asynccontextmanager
async def a2a_routes(door: Door) -> AsyncGenerator[Sequence[BaseRoute]]:
    """Yields the routes."""
    yield A2aDoor(door.stubs, door.check, is_authenticated=door.is_authenticated).routes()


A2A: Final = HttpEdge(opened=a2a_routes)


async def _send(call: HttpCall) -> Response:
    body = await _body(call)
    configuration = _configuration(body)
    turn = await _turn(call, body)
    if configuration.get("returnImmediately") is not True:
        with suppress(TimeoutError):
            async with asyncio.timeout(BLOCK_SECONDS):
                await call.while_connected(_until_end(call, turn))
    return _answer({"task": await _task_json(call, turn.task_id, configuration.get("historyLength"))})


async def _until_end(call: HttpCall, turn: ChatTurn) -> None:
    async with aclosing(_updates(call, turn)) as updates:
        async for _ in updates:
            pass


def _configuration(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration of a message, {} without one. Raises InvalidRequest and HttpRefusal."""
    configuration = body.get("configuration") or {}
    if not isinstance(configuration, dict):
        raise InvalidRequest(violations=[("configuration", "must be an object")])
    length = configuration.get("historyLength")
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 0):
        raise InvalidRequest(violations=[("configuration.historyLength", "must be a number, 0 or more")])
    if configuration.get("taskPushNotificationConfig"):
        raise refusal(NO_PUSH, f"{_NO_PUSH}: send the message without taskPushNotificationConfig")
    return configuration


async def _stream(call: HttpCall) -> Response:
    body = await _body(call)
    _configuration(body)
    turn = await _turn(call, body)
    return EventResponse(await first_parts(_parts(_updates(call, turn, starts=True))))


async def _turn(call: HttpCall, body: dict[str, Any]) -> ChatTurn:
    """Begins the turn of a message, once, also when it is repeated."""
    message = body.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("messageId"), str) or not message["messageId"]:
        raise InvalidRequest(violations=[("message.messageId", "must be the id of the message")])
    text, data, files = _contents(message.get("parts"))
    if task_id := _text(message, "taskId"):
        task = await _task(call, task_id)
        if _text(message, "contextId") not in {"", context_of(task)}:
            raise InvalidRequest(violations=[("message.contextId", "is not the context of the task")])
        return await _turn_of_task(call, task, message["messageId"], text, data, files)
    context = _text(message, "contextId") or message["messageId"]  # so that a repeat has the same context
    request_id = _request_id(context, message["messageId"])
    options = read_json(SubmitBody, _options(body) or _options(message) or {})
    return await ChatThread(call, context, options).say(request_id, _said(text, data), files)


async def _turn_of_task(
    call: HttpCall, task: task_pb2.Task, message_id: str, text: str, data: Any, files: Sequence[InputFile] = ()
) -> ChatTurn:
    """Sends a message to a task that the client names."""
    thread = ChatThread(call, context_of(task), SubmitBody())
    request_id = _request_id(context_of(task), message_id)
    if (begun := await thread.turn_of(task, request_id)) is not None:
        return begun
    if approvals := _approvals(data, text):
        if not all(one.identity.startswith(f"{task.task_id}/") for one in approvals):
            raise InvalidRequest(violations=[("message.parts", "the approvalId is not of the task")])
        if (answered := await answer_approvals(call, approvals, files)) is not None:
            return await thread.after_answer(*answered)
    if task.state in TERMINAL_STATES:
        raise refusal(UNSUPPORTED, "the task has ended: send the message in its context, without a task")
    if not task.spec.source.exclusive:
        raise refusal(UNSUPPORTED, "the task did not begin by a message: its own client steers it")
    return await thread.say(request_id, _said(text, data), files)


def _request_id(context: str, message_id: str) -> str:
    request_id = message_request_id(context, message_id)
    if len(request_id) > MAX_ID:
        raise InvalidRequest(
            violations=[("message", f"contextId and messageId must have at most {MAX_ID - 1} characters")]
        )
    return request_id


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name, "")
    if not isinstance(value, str):
        raise InvalidRequest(violations=[(f"message.{name}", "must be a text")])
    return value


def _options(holder: dict[str, Any]) -> Any:
    """Returns the fields of the submit, which `metadata.task` may have."""
    metadata = holder.get("metadata")
    return metadata.get("task") if isinstance(metadata, dict) else None


def _contents(parts: Any) -> tuple[str, Any, list[InputFile]]:
    """Returns the texts of a message, joined, its first data, and its files."""
    usable = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if any("url" in part for part in usable):
        raise refusal("CONTENT_TYPE_NOT_SUPPORTED", f"a file of a message {NOT_FETCHED}")
    texts = [part["text"] for part in usable if isinstance(part.get("text"), str)]
    files = [
        input_file(part["raw"], part.get("filename"), part.get("mediaType"), "message.parts")
        for part in usable
        if "raw" in part
    ]
    return "\n".join(texts), next((part["data"] for part in usable if "data" in part), None), files


def _approvals(data: Any, text: str) -> list[Approval]:
    """Returns the answers in the data of a message: an object with an approvalId, or a list of such objects."""
    return [
        Approval(one["approvalId"], one.get("approved") is True, str(one.get("comment") or text), one.get("editedArgs"))
        for one in (data if isinstance(data, list) else [data])
        if isinstance(one, dict) and isinstance(one.get("approvalId"), str)
    ]


def _said(text: str, data: Any) -> str:
    said = text if data is None else "\n".join(filter(None, (text, json.dumps(data, ensure_ascii=False))))
    if not said:
        raise InvalidRequest(violations=[("message.parts", "must have a text or data")])
    return said


# Tasks.


async def _task(call: HttpCall, task_id: str) -> task_pb2.Task:
    task: task_pb2.Task = (await call.one(call.stubs.tasks.GetTask, api.GetTaskRequest(task_id=task_id))).task
    return task


async def _get(call: HttpCall) -> Response:
    text = call.request.query_params.get("historyLength", "")
    try:
        length = length_of_text(text) if text else None
    except ValueError:
        raise InvalidRequest(violations=[("historyLength", "must be a number, 0 or more")]) from None
    return _answer(await _task_json(call, call.path("task_id"), length))


async def _task_json(call: HttpCall, task_id: str, length: int | None) -> dict[str, Any]:
    task = await _task(call, task_id)
    return task_json(task, base_url=base_url_of(call), history=await history_of(call, task, length))


async def _list(call: HttpCall) -> Response:
    return _answer(await list_json(call))


async def _cancel(call: HttpCall) -> Response:
    task = await _task(call, call.path("task_id"))
    if task.state in TERMINAL_STATES:
        raise refusal(NOT_CANCELABLE, "the task has ended")
    try:
        await call.one(call.stubs.tasks.CancelTask, api.CancelTaskRequest(task_id=task.task_id, reason="by A2A"))
    except WrongState:
        raise refusal(NOT_CANCELABLE, "the task has ended") from None
    wait = api.WaitTaskRequest(task_id=task.task_id, timeout=duration(CANCEL_SECONDS))
    ended = await call.while_connected(call.one(call.stubs.tasks.WaitTask, wait, timeout=CANCEL_SECONDS + 15))
    return _answer(task_json(ended.task, base_url=base_url_of(call)))


async def _subscribe(call: HttpCall) -> Response:
    task = await _task(call, call.path("task_id"))
    if task.state in TERMINAL_STATES:
        raise refusal(UNSUPPORTED, "the task has ended: nothing follows")
    turn = ChatTurn(task.task_id, task.sequence)
    return EventResponse(await first_parts(_parts(_updates(call, turn, now=task))))


async def _updates(
    call: HttpCall, turn: ChatTurn, *, starts: bool = False, now: task_pb2.Task | None = None
) -> AsyncGenerator[dict[str, Any] | None]:
    """Yields the updates of a turn, None for a heartbeat. `starts`, `now`: with the task before them."""
    task = now or await _task(call, turn.task_id)
    if starts or now is not None:
        yield {"task": task_json(task, base_url=base_url_of(call), starts=starts)}
    watch = EventWatch(call, turn.task_id, turn.after_sequence, task.sequence, live=False)
    async with aclosing(watch.events()) as events:
        async for event in events:
            if event is None:
                yield None
                continue
            if isinstance(event, TransitionEvent) and event.state in TERMINAL:
                for artifact in output_artifacts(await _task(call, turn.task_id), base_url_of(call)):
                    identity = {"taskId": task.task_id, "contextId": context_of(task)}
                    yield {"artifactUpdate": {**identity, "artifact": artifact, "lastChunk": True}}
            for update in updates_of(task, event):
                yield update
            if is_end_of_turn(event):
                return


async def _parts(updates: AsyncGenerator[dict[str, Any] | None]) -> AsyncGenerator[bytes]:
    """Yields the frames. An error becomes the event `error`; when this gateway drains, the stream just ends."""
    sent = False
    try:
        async with aclosing(updates):
            async for update in updates:
                sent = True
                yield COMMENT if update is None else frame(update)
    except Unavailable:
        if not sent:
            raise
    except (TenureError, PeerFailed) as error:
        if not sent:
            raise
        yield event_bytes("error", error_json(error)[1])
