"""A turn of a conversation as a stream: the events of its task, until it has ended or waits for a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Protocol

from edges.chats.conversation import ChatTurn
from services.gateway.http.call import HttpCall
from services.gateway.http.event_stream import COMMENT
from services.gateway.http.json_text import json_text
from services.gateway.http.streams import EventWatch
from tenure.domain.states import TERMINAL, TaskState
from tenure.sdk.events import Event, TransitionEvent
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api


class TurnWriter(Protocol):
    """Writes a turn in a protocol of chats. Each method yields the protocol's events."""

    def begin(self) -> Iterator[dict[str, Any]]: ...
    def event(self, event: Event, *, is_end: bool) -> Iterator[dict[str, Any]]: ...


def is_end_of_turn(event: Event) -> bool:
    """Returns whether the task has ended, or waits for a person."""
    return isinstance(event, TransitionEvent) and (event.state in TERMINAL or event.state is TaskState.WAITING_USER)


def _is_answered(event: Event, task: task_pb2.Task) -> bool:
    """Returns whether the wait that began with the event is over. `task`: as it was when the stream began."""
    if not isinstance(event, TransitionEvent) or event.state is not TaskState.WAITING_USER or event.sequence is None:
        return False
    is_present = event.wait is not None and task.wait.wait_id == event.wait.wait_id
    return event.sequence <= task.sequence and not is_present


def frame(data: dict[str, Any], event_id: int | None = None) -> bytes:
    """Returns one event without a name, as protocols of chats send it."""
    identity = "" if event_id is None else f"id: {event_id}\n"
    return f"{identity}data: {json_text(data)}\n\n".encode(errors="replace")


async def turn_parts(
    call: HttpCall,
    turn: ChatTurn,
    writer: TurnWriter,
    *,
    after_sequence: int = 0,
    passes_answered: bool = False,
    last: bytes = b"",
) -> AsyncGenerator[bytes]:
    """Yields the turn. The frames of an entry have its sequence as id; those up to `after_sequence` are left out.

    `passes_answered`: a wait that has its answer does not end the turn. `last`: what follows the end. The stream of a
    turn whose task waits for an event or for sub-agents goes on.
    """
    if not after_sequence:
        for part in writer.begin():
            yield frame(part)
    else:
        list(writer.begin())
    task = (await call.one(call.stubs.tasks.GetTask, api.GetTaskRequest(task_id=turn.task_id))).task
    watch = EventWatch(call, turn.task_id, turn.after_sequence, task.sequence, live=True)
    async with aclosing(watch.events()) as events:
        async for event in events:
            if event is None:
                yield COMMENT
                continue
            is_end = is_end_of_turn(event) and not (passes_answered and _is_answered(event, task))
            written = list(writer.event(event, is_end=is_end))
            if event.sequence is None or event.sequence > after_sequence:
                for number, part in enumerate(written, 1):
                    yield frame(part, event.sequence if number == len(written) else None)
            if is_end:
                break
    yield last
