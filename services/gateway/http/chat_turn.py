"""A turn of a conversation as a stream: the events of its task, until it has ended or waits for a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Protocol

from services.gateway.http.call import HttpCall
from services.gateway.http.conversation import ChatTurn
from services.gateway.http.event_stream import COMMENT
from services.gateway.http.json_text import json_text
from services.gateway.http.streams import EventWatch
from tenure.domain.states import TERMINAL, TaskState
from tenure.sdk.events import Event, TransitionEvent


class TurnWriter(Protocol):
    """Writes a turn in a protocol of chats. Each method yields the protocol's events."""

    def begin(self) -> Iterator[dict[str, Any]]: ...
    def event(self, event: Event) -> Iterator[dict[str, Any]]: ...


def is_end_of_turn(event: Event) -> bool:
    """Returns whether the task has ended, or waits for a person."""
    return isinstance(event, TransitionEvent) and (event.state in TERMINAL or event.state is TaskState.WAITING_USER)


def frame(data: dict[str, Any], event_id: int | None = None) -> bytes:
    """Returns one event without a name, as protocols of chats send it."""
    identity = "" if event_id is None else f"id: {event_id}\n"
    return f"{identity}data: {json_text(data)}\n\n".encode(errors="replace")


async def turn_parts(
    call: HttpCall, turn: ChatTurn, writer: TurnWriter, *, after_sequence: int = 0, last: bytes = b""
) -> AsyncGenerator[bytes]:
    """Yields the turn. The frames of an entry have its sequence as id; those up to `after_sequence` are left out.

    `last`: what follows the end. The stream of a turn whose task waits for an event or for sub-agents goes on.
    """
    if not after_sequence:
        for part in writer.begin():
            yield frame(part)
    else:
        list(writer.begin())
    watch = EventWatch(call, turn.after_sequence, live=True, task_id=turn.task_id)
    async with aclosing(watch.events()) as events:
        async for event in events:
            if event is None:
                yield COMMENT
                continue
            written = list(writer.event(event))
            if event.sequence is None or event.sequence > after_sequence:
                for number, part in enumerate(written, 1):
                    yield frame(part, event.sequence if number == len(written) else None)
            if is_end_of_turn(event):
                break
    yield last
