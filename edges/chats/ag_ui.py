"""Tasks as an agent of AG-UI 1.0 (https://docs.ag-ui.com): `POST /v1/ag-ui` is the address of an HttpAgent.

A run is the turn of the last user message, or of the answers of interrupts. A run that is sent again streams the same
turn again; with `Last-Event-ID` it goes on after that entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from edges.chats.ai_chat import Approval, answer_approvals, answer_question, approval_id, approvals_of
from edges.chats.conversation import ChatThread, ChatTurn, message_request_id
from edges.chats.files import files_of
from edges.chats.text import ChatText, TextPart
from edges.chats.turn import turn_parts
from services.gateway.http.call import HttpCall
from services.gateway.http.event_stream import EventResponse
from services.gateway.http.json_text import json_text
from services.gateway.http.requests import NoQuery, SubmitBody
from services.gateway.http.shapes import given, read_json
from services.gateway.http.streams import first_parts, sequence_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.waits import WaitKind
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
)
from tenure.sdk.task_info import TaskWait

MAX_ID: Final = 128
_APPROVAL_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object"},
        "comment": {"type": "string"},
    },
    "required": ["approved"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBody:
    """RunAgentInput of AG-UI. `forwardedProps.task`: of the thread's first task, as in a submit."""

    threadId: str = given("the conversation")  # noqa: N815  names of AG-UI
    runId: str = given("the run")  # noqa: N815
    messages: tuple[Any, ...] = given("the last user message begins the turn", ())
    resume: tuple[Any, ...] = given("answers of interrupts", ())
    forwardedProps: Any = given("`task`: model, tools, approve_tools, …", None)  # noqa: N815


def run_body(value: Any) -> Any:
    """Returns what is used of a RunAgentInput, which may have more."""
    if not isinstance(value, dict):
        return value
    names = ("threadId", "runId", "messages", "resume", "forwardedProps")
    return {name: value[name] for name in names if value.get(name) is not None}


async def run(call: HttpCall, _query: NoQuery, body: RunBody) -> Response:
    """Begins or repeats a run, and streams it."""
    after = sequence_of(call, 0)
    props = body.forwardedProps if isinstance(body.forwardedProps, dict) else {}
    options = read_json(SubmitBody, props.get("task") or {})
    conversation = ChatThread(call, body.threadId, options)
    turn = await _turn(call, conversation, body)
    writer = AgUiWriter(body.threadId, body.runId, turn.task_id)
    return EventResponse(await first_parts(turn_parts(call, turn, writer, after_sequence=after)))


async def _turn(call: HttpCall, conversation: ChatThread, body: RunBody) -> ChatTurn:
    if not body.threadId:  # the tasks of "" would be those of all conversations
        raise InvalidRequest(violations=[("threadId", "must be the id of the conversation")])
    answered: tuple[str, str] | None = None
    approvals: list[Approval] = []
    for entry in body.resume:
        if not isinstance(entry, dict) or not isinstance(entry.get("interruptId"), str):
            raise InvalidRequest(violations=[("resume", "needs an interruptId in each entry")])
        identity, payload = entry["interruptId"], entry.get("payload")
        answer = payload if isinstance(payload, dict) else {"approved": payload is True}
        is_approved = entry.get("status") == "resolved" and answer.get("approved") is True
        if isinstance(payload, str) and entry.get("status") == "resolved":
            answered = identity.partition("/")[0], await answer_question(call, identity, payload)
        else:
            comment = str(answer.get("comment") or "")
            approvals.append(Approval(identity, is_approved, comment, answer.get("editedArgs")))
    answered = await answer_approvals(call, approvals) or answered
    if answered is not None:
        return await conversation.after_answer(*answered)
    last = body.messages[-1] if body.messages else None
    if not isinstance(last, dict) or last.get("role") != "user" or not last.get("id"):
        raise InvalidRequest(violations=[("messages", "needs a last message of the user, with an id")])
    text = _text(last.get("content"))
    message_id = message_request_id(body.threadId, str(last["id"]))
    if not text or len(message_id) > MAX_ID:
        raise InvalidRequest(violations=[("messages", "needs a last message with a text")])
    return await conversation.say(message_id, text, files_of(last.get("content"), "messages"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


class AgUiWriter:
    """Writes a turn as events of AG-UI."""

    def __init__(self, thread_id: str, run_id: str, task_id: str) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._task_id = task_id
        self._text = ChatText()
        self._step = ""
        self._has_text = False

    def begin(self) -> Iterator[dict[str, Any]]:
        """Yields the beginning of the run."""
        yield {"type": "RUN_STARTED", **self._run}

    def event(self, event: Event, *, is_end: bool) -> Iterator[dict[str, Any]]:  # noqa: ARG002  each wait ends a run
        """Yields the events of an event."""
        match event:
            case ModelAttemptEvent(attempt_number=1):
                yield from self._begin_step(f"step {event.step}")
            case LiveTextEvent():
                if event.replaces:
                    yield from self._texts(self._text.replace())
                yield from self._texts(self._text.live(event))
            case ModelFailureEvent() | AttemptLostEvent() if self._text.has_open:
                yield from self._texts(self._text.replace())
            case AssistantMessageEvent():
                self._has_text |= bool(event.text)
                yield from self._texts(self._text.answer(event))
            case ToolIntentEvent():
                call = {"toolCallId": self._id(event.call_id)}
                yield {"type": "TOOL_CALL_START", **call, "toolCallName": event.tool}
                yield {"type": "TOOL_CALL_ARGS", **call, "delta": json_text(event.arguments)}
                yield {"type": "TOOL_CALL_END", **call}
            case ToolOutcomeEvent():
                call_id = self._id(event.call_id)
                yield {
                    "type": "TOOL_CALL_RESULT",
                    "messageId": f"{call_id}/result",
                    "toolCallId": call_id,
                    "content": event.content or event.status.value,
                    "role": "tool",
                }
            case TransitionEvent():
                yield from self._transition(event)

    def _id(self, name: str) -> str:
        return f"{self._task_id}/{name}"

    def _texts(self, parts: Iterator[TextPart]) -> Iterator[dict[str, Any]]:
        for part in parts:
            message = {"messageId": self._id(part.part_id)}
            if part.text is None:
                yield {"type": "TEXT_MESSAGE_END", **message}
            elif not part.text:
                yield {"type": "TEXT_MESSAGE_START", **message, "role": "assistant"}
            else:
                yield {"type": "TEXT_MESSAGE_CONTENT", **message, "delta": part.text}

    def _begin_step(self, name: str) -> Iterator[dict[str, Any]]:
        yield from self._end_step()
        self._step = name
        yield {"type": "STEP_STARTED", "stepName": name}

    def _end_step(self) -> Iterator[dict[str, Any]]:
        if self._step:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
        self._step = ""

    def _transition(self, event: TransitionEvent) -> Iterator[dict[str, Any]]:
        state = {"task_id": self._task_id, "state": event.state.value, "reason": event.reason}
        yield {"type": "STATE_SNAPSHOT", "snapshot": {"task": state}}
        if event.state is TaskState.WAITING_USER:
            yield from self._texts(self._text.close())
            yield from self._end_step()
            interrupts = [] if event.wait is None else self._interrupts(event.wait)
            outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
            yield {"type": "RUN_FINISHED", **self._run, "outcome": outcome}
        elif event.state is TaskState.SUCCEEDED:
            if not self._has_text and event.result:
                whole = (TextPart("result", ""), TextPart("result", event.result), TextPart("result", None))
                yield from self._texts(iter(whole))
            yield from self._end_step()
            result = event.result if event.result_data is None else event.result_data
            yield {"type": "RUN_FINISHED", **self._run, "result": result, "outcome": {"type": "success"}}
        elif event.state in TERMINAL:
            yield from self._texts(self._text.close())
            yield from self._end_step()
            why = f": {event.message}" if event.message else ""
            yield {"type": "RUN_ERROR", "message": f"the task ended as {event.state}{why}", "code": event.reason}

    def _interrupts(self, wait: TaskWait) -> list[dict[str, Any]]:
        """Returns an interrupt for each call that needs approval, or one for another wait."""
        about: dict[str, Any] = {"reason": wait.kind.value, "metadata": {"wait": wait.to_json()}}
        if wait.kind is not WaitKind.TOOL_APPROVAL:
            return [{"id": approval_id(self._task_id, wait), "message": wait.question, **about}]
        about["responseSchema"] = _APPROVAL_SCHEMA
        return [
            {
                "id": identity,
                "message": f"May {call.tool} be called?" if wait.calls else wait.question,
                "toolCallId": self._id(call.call_id),
                **about,
            }
            for identity, call in approvals_of(self._task_id, wait)
        ]
