"""Tasks as a chat of the AI SDK (npm `ai`): the UI message stream protocol, version 1.

`POST /v1/ai/chat` takes what DefaultChatTransport sends and streams the turn; `GET /v1/ai/chat/{id}/stream` streams the
running turn again, from its beginning, as `useChat({resume: true})` expects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from edges.chats.conversation import ChatThread, ChatTurn, message_request_id
from edges.chats.files import files_of
from edges.chats.text import ChatText, TextPart
from edges.chats.turn import turn_parts
from services.gateway.http.call import HttpCall
from services.gateway.http.event_stream import EventResponse
from services.gateway.http.requests import NoQuery, SubmitBody
from services.gateway.http.shapes import given
from services.gateway.http.streams import first_parts
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TaskState
from tenure.domain.task import InputFile
from tenure.domain.tools import OutcomeStatus
from tenure.domain.waits import ALLOW, APPROVE, DENY, EDIT, WaitKind
from tenure.sdk.events import (
    AssistantMessageEvent,
    AttemptLostEvent,
    Event,
    LiveTextEvent,
    ModelAttemptEvent,
    ModelFailureEvent,
    ToolIntentEvent,
    ToolOutcomeEvent,
    TransitionEvent,
    WaitResolutionEvent,
)
from tenure.sdk.option_values import files as input_files
from tenure.sdk.task_info import CallToApprove, TaskWait
from tenure.v1 import task_service_pb2 as api

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
DONE: Final = b"data: [DONE]\n\n"
MAX_ID: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    """The body of DefaultChatTransport. `task` is yours: set it as `body: {task: {model: …}}` of the transport."""

    id: str = given("the chat")
    messages: tuple[Any, ...] = given("UI messages: the last one is the user's, or has the answers of approvals")
    trigger: str = given("submit-message, or regenerate-message, which is refused", "submit-message")
    message_id: str = given("not used", "")
    task: SubmitBody | None = given("of the chat's first task: model, tools, approve_tools, …", None)


def chat_body(value: Any) -> Any:
    """Returns the body with its name in snake_case, and without fields that only the transport of a user's own has."""
    if not isinstance(value, dict):
        return value
    return {name: value[name] for name in ("id", "messages", "trigger", "task") if name in value}


async def chat(call: HttpCall, _query: NoQuery, body: ChatBody) -> Response:
    """Begins or repeats the turn of the last message, and streams it."""
    if body.trigger != "submit-message":
        raise InvalidRequest(violations=[("trigger", "only submit-message: what a task did is not done again")])
    if not body.id or not body.messages or not isinstance(body.messages[-1], dict):
        raise InvalidRequest(violations=[("messages", "needs a chat with a message")])
    conversation = ChatThread(call, body.id, body.task or SubmitBody())
    last = body.messages[-1]
    if last.get("role") == "assistant":
        turn = await _answered(call, conversation, last)
        return await _stream(call, turn, str(last.get("id", "")))
    text = "\n".join(_texts(last))
    message_id = message_request_id(body.id, str(last.get("id", "")))
    if not text or not last.get("id") or len(message_id) > MAX_ID:
        raise InvalidRequest(violations=[("messages", "needs a last message with an id and a text")])
    turn = await conversation.say(message_id, text, files_of(last.get("parts"), "messages"))
    return await _stream(call, turn, _message_id(turn))


async def resume_chat(call: HttpCall, _query: NoQuery, _body: None) -> Response:
    """Streams the running turn from its beginning; 204 without one."""
    turn = await ChatThread(call, call.path("chat_id"), SubmitBody()).current()
    if turn is None:
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"cache-control": "no-store"})
    return await _stream(call, turn, _message_id(turn))


def _message_id(turn: ChatTurn) -> str:
    """Returns the id of the message that answers, the same one in each stream of the turn."""
    return f"{turn.task_id}-{turn.after_sequence}"


async def _stream(call: HttpCall, turn: ChatTurn, message_id: str) -> Response:
    parts = turn_parts(call, turn, UiMessageWriter(turn.task_id, message_id), passes_answered=True, last=DONE)
    return EventResponse(await first_parts(parts), HEADERS)


def _texts(message: dict[str, Any]) -> Iterator[str]:
    parts = message.get("parts")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield part["text"]


# Approvals: the id of an approval names the wait and the call that the person saw.


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's answer. `edited`: the arguments of the call as the person approves them; a denial has none."""

    identity: str
    is_approved: bool
    comment: str = ""
    edited: Any = None

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """The task, the wait, the digest of the call, and the call if it is one of several. "" for what is missing."""
        task_id, wait_id, digest, call_id, *_ = (*self.identity.split("/", 3), "", "", "")
        return task_id, wait_id, digest, call_id

    @property
    def decision(self) -> str:
        if not self.is_approved:
            return DENY
        return ALLOW if self.edited is None else EDIT

    @property
    def edited_json(self) -> str:
        return json.dumps(self.edited, ensure_ascii=False) if self.decision == EDIT else ""


def approval_id(task_id: str, wait: TaskWait) -> str:
    """Returns the id under which the answer of a person comes, to a wait for at most one call."""
    return f"{task_id}/{wait.wait_id}/{wait.call_digest}"


def approvals_of(task_id: str, wait: TaskWait) -> list[tuple[str, TaskWait | CallToApprove]]:
    """Returns the id of the approval of each call of the wait, with the call."""
    if not wait.calls:
        return [(approval_id(task_id, wait), wait)]
    return [(f"{task_id}/{wait.wait_id}/{call.call_digest}/{call.call_id}", call) for call in wait.calls]


async def answer_approvals(
    call: HttpCall, approvals: Iterable[Approval], files: Sequence[InputFile] = ()
) -> tuple[str, str] | None:
    """Answers the waits that the approvals are for, each once, also when it is repeated. Those of one wait go together,
    because a wait takes one answer; the files go with the first. Returns the task and the wait of the last answer.
    """
    sent = input_files("files", files)
    answered: dict[tuple[str, str], list[Approval]] = {}
    for one in {each.identity: each for each in approvals}.values():
        answered.setdefault(one.parts[:2], []).append(one)
    for together in answered.values():
        request = _request_of(together)
        request.files.extend(sent)
        await call.one(call.stubs.tasks.ResumeTask, request)
        sent = ()
    return list(answered)[-1] if answered else None


def _request_of(together: list[Approval]) -> api.ResumeTaskRequest:
    first = together[0]
    task_id, wait_id, _, one_of_several = first.parts
    if len(together) == 1 and not one_of_several:
        request = _answer_of(first.identity, first.comment)
        is_plain = first.is_approved and not request.call_digest and first.edited is None
        request.decision = APPROVE if is_plain else first.decision
        request.edited_arguments_json = first.edited_json
        return request
    request = _answer_of(f"{task_id}/{wait_id}", "")
    for one in together:
        _, _, digest, call_id = one.parts  # without a call, the gateway refuses the answer
        decision = request.calls.add(call_id=call_id, decision=one.decision, call_digest=digest, comment=one.comment)
        decision.edited_arguments_json = one.edited_json
    return request


async def answer_question(call: HttpCall, approval: str, reply: str) -> str:
    """Answers the wait that the approval is for with a text, as `answer_approvals` does. No other wait takes it."""
    request = _answer_of(approval, "")
    request.reply = reply
    await call.one(call.stubs.tasks.ResumeTask, request)
    return request.wait_id


def _answer_of(approval: str, comment: str) -> api.ResumeTaskRequest:
    task_id, _, rest = approval.partition("/")
    wait_id, _, digest = rest.partition("/")
    return api.ResumeTaskRequest(
        task_id=task_id, wait_id=wait_id, call_digest=digest, comment=comment, request_id=f"approval/{wait_id}"
    )


async def _answered(call: HttpCall, conversation: ChatThread, message: dict[str, Any]) -> ChatTurn:
    """Answers the approvals of a message, and returns the turn that goes on."""
    parts = message.get("parts")
    approvals = [
        Approval(
            str(approval.get("id", "")), approval.get("approved") is True, comment=str(approval.get("reason") or "")
        )
        for part in (parts if isinstance(parts, list) else [])
        if isinstance(part, dict) and part.get("state") == "approval-responded"
        if isinstance(approval := part.get("approval"), dict)
    ]
    answered = await answer_approvals(call, approvals)
    if answered is None:
        raise InvalidRequest(violations=[("messages", "the last message is the assistant's, and answers no approval")])
    return await conversation.after_answer(*answered)


class UiMessageWriter:
    """Writes a turn as chunks of a UI message stream."""

    def __init__(self, task_id: str, message_id: str) -> None:
        self._task_id, self._message_id = task_id, message_id
        self._text = ChatText()
        self._in_step = self._has_text = False
        self._approvals = dict[tuple[str, str], str]()

    def begin(self) -> Iterator[dict[str, Any]]:
        """Yields the beginning of the message."""
        yield {"type": "start", "messageId": self._message_id}

    def event(self, event: Event, *, is_end: bool) -> Iterator[dict[str, Any]]:
        """Yields the chunks of an event."""
        match event:
            case ModelAttemptEvent(attempt_number=1):
                yield from self._step()
            case LiveTextEvent():
                if event.replaces:
                    yield from self._discard()
                yield from self._step(only_first=True)
                yield from map(_text_chunk, self._text.live(event))
            case ModelFailureEvent() | AttemptLostEvent():
                yield from self._discard()
            case AssistantMessageEvent():
                yield from self._step(only_first=True)
                self._has_text |= bool(event.text)
                yield from map(_text_chunk, self._text.answer(event))
            case ToolIntentEvent():
                yield {
                    "type": "tool-input-available",
                    "toolCallId": self._call_id(event.call_id),
                    "toolName": event.tool,
                    "input": event.arguments,
                    "dynamic": True,
                }
            case ToolOutcomeEvent():
                yield self._outcome(event)
            case TransitionEvent():
                yield from self._transition(event, is_end=is_end)
            case WaitResolutionEvent() if identity := self._approvals.get((event.wait_id, event.call_id)):
                approval = {"approvalId": identity, "approved": event.answer != DENY}
                yield {"type": "tool-approval-response", **approval, "reason": event.comment}

    def _discard(self) -> Iterator[dict[str, Any]]:
        if self._text.has_open:
            yield from map(_text_chunk, self._text.replace())
            yield {"type": "reset-step"}

    def _step(self, *, only_first: bool = False) -> Iterator[dict[str, Any]]:
        if self._in_step and only_first:
            return
        if self._in_step:
            yield {"type": "finish-step"}
        self._in_step = True
        yield {"type": "start-step"}

    def _call_id(self, call_id: str) -> str:
        return f"{self._task_id}/{call_id}"

    def _outcome(self, event: ToolOutcomeEvent) -> dict[str, Any]:
        call = {"toolCallId": self._call_id(event.call_id), "dynamic": True}
        if event.status is OutcomeStatus.SUCCEEDED:
            return {"type": "tool-output-available", **call, "output": event.content}
        return {"type": "tool-output-error", **call, "errorText": event.content or event.status.value}

    def _transition(self, event: TransitionEvent, *, is_end: bool) -> Iterator[dict[str, Any]]:
        wait = event.wait
        data = {"task_id": self._task_id, "state": event.state.value, "reason": event.reason, "message": event.message}
        yield {
            "type": "data-task",
            "id": self._task_id,
            "data": data | {"wait": None if wait is None else wait.to_json()},
        }
        if event.state is TaskState.WAITING_USER:
            yield from map(_text_chunk, self._text.close())
            if wait is not None and wait.kind is WaitKind.TOOL_APPROVAL:
                for identity, waiting in approvals_of(self._task_id, wait):
                    self._approvals[wait.wait_id, waiting.call_id] = identity
                    request = {"approvalId": identity, "toolCallId": self._call_id(waiting.call_id)}
                    yield {"type": "tool-approval-request", **request}
            elif wait is not None and wait.question:
                yield from _whole_text(f"wait-{wait.wait_id}", wait.question)
            if is_end:
                yield from self._finish("tool-calls")
        elif event.state is TaskState.SUCCEEDED:
            if not self._has_text and event.result:  # of a function, whose answer no model gave
                yield from _whole_text("result", event.result)
            yield from self._finish("stop")
        elif event.state in {TaskState.FAILED, TaskState.TIMED_OUT, TaskState.COST_EXCEEDED, TaskState.CANCELLED}:
            yield from map(_text_chunk, self._text.close())
            why = f": {event.message}" if event.message else ""
            yield {"type": "error", "errorText": f"the task ended as {event.state} ({event.reason}){why}"}
            yield from self._finish("error")

    def _finish(self, reason: str) -> Iterator[dict[str, Any]]:
        if self._in_step:
            yield {"type": "finish-step"}
        yield {"type": "finish", "finishReason": reason}


def _text_chunk(part: TextPart) -> dict[str, Any]:
    if part.text is None:
        return {"type": "text-end", "id": part.part_id}
    if not part.text:
        return {"type": "text-start", "id": part.part_id}
    return {"type": "text-delta", "id": part.part_id, "delta": part.text}


def _whole_text(part_id: str, text: str) -> Iterator[dict[str, Any]]:
    yield from map(_text_chunk, (TextPart(part_id, ""), TextPart(part_id, text), TextPart(part_id, None)))
