"""The history of a task in the words of A2A: the messages of its user and of its agent, from the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from edges.a2a.shapes import agent_message, context_of, question_message
from edges.chats.conversation import message_request_id
from services.gateway.http.call import HttpCall
from tenure.domain.states import TaskState
from tenure.domain.waits import WaitAnswerKind
from tenure.sdk.events import (
    AssistantMessageEvent,
    Event,
    SubmittedEvent,
    TransitionEvent,
    UserMessageEvent,
    WaitResolutionEvent,
)
from tenure.sdk.from_wire import entry_event
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

MAX_MESSAGES: Final = 100
MAX_CHARACTERS: Final = 1_000_000
_KINDS: Final = ("submitted", "user_message", "assistant_message", "wait_resolution", "transition")
_PAGE: Final = 1000
_FIRST_WINDOW: Final = 256
"""The entries that are read first, the newest ones: they mostly have enough messages."""


async def history_of(call: HttpCall, task: task_pb2.Task, length: int | None) -> list[dict[str, Any]]:
    """Returns the newest messages, the oldest of them first, up to the present status, whose message is not among them.

    `length`: the most messages that the client wants; None: MAX_MESSAGES, which is also the most that it gets.
    """
    wanted = MAX_MESSAGES if length is None else min(length, MAX_MESSAGES)
    if not wanted:
        return []
    begin, window = await _begin_of(call, task), _FIRST_WINDOW
    while True:
        after = max(begin, task.sequence - window)
        said: deque[dict[str, Any]] = deque(maxlen=wanted)
        async for event in _events(call, task, after):
            said.extend(_messages_of(task, event))
        if len(said) == wanted or after == begin:
            return _bounded(said)
        window *= 4


def _bounded(said: deque[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the newest messages that have MAX_CHARACTERS together, at least one."""
    kept: deque[dict[str, Any]] = deque()
    size = 0
    for message in reversed(said):
        size += len(str(message["parts"]))
        if kept and size > MAX_CHARACTERS:
            break
        kept.appendleft(message)
    return list(kept)


async def _begin_of(call: HttpCall, task: task_pb2.Task) -> int:
    """Returns the sequence after which the task's own messages are: what a fork copied belongs to the other task."""
    if not task.HasField("forked_from"):
        return 0
    request = api.ListTaskEntriesRequest(task_id=task.task_id, page_size=2)
    page = await call.one(call.stubs.tasks.ListTaskEntries, request)
    return sum(entry.sequence + entry.body.forked.copied_entries for entry in page.entries[1:])


async def _events(call: HttpCall, task: task_pb2.Task, after: int) -> AsyncGenerator[Event]:
    more = True
    while more:
        request = api.ListTaskEntriesRequest(task_id=task.task_id, after_sequence=after, page_size=_PAGE, kinds=_KINDS)
        page = await call.one(call.stubs.tasks.ListTaskEntries, request)
        for entry in page.entries:
            if entry.sequence > task.sequence:
                return
            yield entry_event(entry)
            after = entry.sequence
        more = page.more


def _messages_of(task: task_pb2.Task, event: Event) -> Iterator[dict[str, Any]]:
    """Yields the message that an event is, if it is one."""
    match event:
        case SubmittedEvent() if event.goal:
            yield _user_message(task, event, event.request_id, {"text": event.goal})
        case UserMessageEvent() if event.request_id:  # a worker's own messages have none
            yield _user_message(task, event, event.request_id, {"text": event.text})
        case WaitResolutionEvent(answer_kind=WaitAnswerKind.REPLY):
            yield _user_message(task, event, event.request_id, {"text": event.answer})
        case WaitResolutionEvent(answer_kind=WaitAnswerKind.DECISION):
            decision = {"decision": event.answer} | ({"comment": event.comment} if event.comment else {})
            yield _user_message(task, event, "", {"data": decision, "mediaType": "application/json"})
        case AssistantMessageEvent() if event.text:
            yield agent_message(task, f"{event.sequence}", [{"text": event.text}])
        case TransitionEvent(state=TaskState.WAITING_USER) if event.wait and event.wait.wait_id != task.wait.wait_id:
            yield question_message(task, event.wait)


def _user_message(task: task_pb2.Task, event: Event, request_id: str, part: dict[str, Any]) -> dict[str, Any]:
    """Returns a message of the user, with the id that the client gave it, if it came by a protocol of chats."""
    message_id = f"{task.task_id}/{event.sequence}"
    prefix = message_request_id(context_of(task), "")
    if request_id.startswith(prefix):
        message_id = request_id.removeprefix(prefix).replace("%2F", "/").replace("%25", "%")
    return {**agent_message(task, "", [part]), "messageId": message_id, "role": "ROLE_USER"}
