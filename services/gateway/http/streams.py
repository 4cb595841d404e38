"""The streams of events: of one task, and of the changes of all tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from services.gateway.http import requests as req
from services.gateway.http.call import HttpCall
from services.gateway.http.event_stream import BEGINNING, COMMENT, EventResponse, event_bytes
from services.gateway.http.problems import problem_of
from services.gateway.http.tasks import filter_of, read_task
from tenure.client.reconnect import StreamReconnect
from tenure.domain.errors import InvalidRequest, TenureError, TryLater, Unavailable
from tenure.domain.states import TERMINAL
from tenure.runtime.rpc.status import DRAINING, PeerFailed
from tenure.sdk.events import Event, LiveTextEvent
from tenure.sdk.from_wire import change_event
from tenure.sdk.live_text import LiveTextFilter
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import STATES, state_name

LAST_EVENT_ID: Final = "last-event-id"
FIRST_SECONDS: Final = 0.25
"""How long an answer waits for the first message, which may be a refusal: after it, an error has no status."""
_TERMINAL: Final = frozenset(STATES.to_wire(state) for state in TERMINAL)
MAX_SEQUENCE: Final = 2**53


async def task_events(call: HttpCall, query: req.EventsQuery, _body: None) -> Response:
    """Streams the events of a task: each entry once, in order, with live text between them, until `end`.

    204 for a client that has seen the last entry: a browser does not connect again after it.
    """
    after = sequence_of(call, query.after_sequence)
    task = await read_task(call)
    if task.state in _TERMINAL and after >= task.sequence:
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"cache-control": "no-store"})
    watch = EventWatch(call, task.task_id, after, task.sequence, live=query.live)
    return await _stream(_task_parts(watch))


def sequence_of(call: HttpCall, after_sequence: int) -> int:
    """Returns the entry after which the client goes on. Raises InvalidRequest."""
    text = call.request.headers.get(LAST_EVENT_ID, "")
    if not text:
        return after_sequence
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= MAX_SEQUENCE):
        raise InvalidRequest(violations=[("Last-Event-ID", "must be the id of an event of this stream")])
    return int(text)


class EventWatch:
    """The events of a task, across failures of the gateway's own watch.

    `state`: after the last event that was yielded. `sequence`: of the last entry. `newest`: the sequence of the task
    when the stream begins: live text that comes before that entry waits for it.
    """

    def __init__(self, call: HttpCall, task_id: str, after_sequence: int, newest: int, *, live: bool) -> None:
        self._call, self._live, self._task_id, self._newest = call, live, task_id, newest
        self._early = list[LiveTextEvent]()
        self.sequence, self.state = after_sequence, ""

    async def events(self) -> AsyncGenerator[Event | None]:
        """Yields the events, None for a heartbeat, and returns after the entry that closes the task."""
        live_text, reconnect = LiveTextFilter(), StreamReconnect()
        while True:
            request = api.WatchTaskRequest(task_id=self._task_id, after_sequence=self.sequence, live=self._live)
            try:
                messages = self._call.many(self._call.stubs.tasks.WatchTask, request)
                async with aclosing(messages):
                    async for message in messages:
                        reconnect.succeeded()
                        event = live_text.public_event(message)
                        self._note(message)
                        if isinstance(event, LiveTextEvent) and self.sequence < self._newest:
                            self._early.append(event)
                        elif event is not None or message.HasField("heartbeat"):
                            yield event
                        for piece in self._waited(message):
                            yield piece
            except Unavailable as error:
                if not _may_be_opened_again(error):
                    raise
                await reconnect.wait(error)
            else:
                return

    def _note(self, message: api.WatchTaskResponse) -> None:
        if message.HasField("entry"):
            self.sequence = message.entry.sequence
            to_state = message.entry.body.transition.to_state
            if to_state != task_pb2.TASK_STATE_UNSPECIFIED:
                self.state = state_name(to_state)

    def _waited(self, message: api.WatchTaskResponse) -> list[LiveTextEvent]:
        """Returns the live text that waited for this entry; none of a step whose answer has come."""
        entry = message.entry
        if entry.body.HasField("assistant_message"):
            self._early = [piece for piece in self._early if piece.step > entry.step]
        if self.sequence < self._newest:
            return []
        waited, self._early = self._early, []
        return waited


def _may_be_opened_again(error: TryLater) -> bool:
    """Returns whether a new stream may go on: not when this gateway drains, because the client has to leave it."""
    return error.reason != DRAINING


async def _task_parts(watch: EventWatch) -> AsyncGenerator[bytes]:
    async with aclosing(watch.events()) as events:
        async for event in events:
            yield COMMENT if event is None else event_bytes(event.kind, event.to_json(), event.sequence)
    yield event_bytes("end", {"sequence": watch.sequence, "state": watch.state})


async def changes(call: HttpCall, query: req.ChangesQuery, _body: None) -> Response:
    """Streams the changes of the tenant's tasks, for ever. The id of an event is its cursor."""
    after = call.request.headers.get(LAST_EVENT_ID, "") or query.after
    return await _stream(_change_parts(call, filter_of(query), after))


async def _change_parts(call: HttpCall, wanted: task_pb2.TaskFilter, after: str) -> AsyncGenerator[bytes]:
    reconnect = StreamReconnect()
    while True:
        request = api.WatchTasksRequest(filter=wanted, after_cursor=after)
        try:
            messages = call.many(call.stubs.tasks.WatchTasks, request)
            async with aclosing(messages):
                async for message in messages:
                    reconnect.succeeded()
                    after, event = message.cursor, change_event(message)
                    yield event_bytes(event.kind, event.to_json(), event.cursor)
        except Unavailable as error:
            if not _may_be_opened_again(error):
                raise
            await reconnect.wait(error)


async def _stream(parts: AsyncGenerator[bytes]) -> EventResponse:
    return EventResponse(_with_problems(await first_parts(parts)))


async def first_parts(parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Returns the same parts. Raises the error that comes before the first of them, or soon."""
    first = asyncio.create_task(_next(parts))
    try:
        await asyncio.wait({first}, timeout=FIRST_SECONDS)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if first.done():
        first.result()
    return _from_first(first, parts)


async def _next(parts: AsyncIterator[Any]) -> Any:
    return await anext(parts, None)


async def _from_first(first: asyncio.Task[Any], parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        if (part := await first) is not None:
            yield part
        async for following in parts:
            yield following
    finally:
        if not first.done():
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await parts.aclose()


async def _with_problems(parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yields all parts. An error becomes the event `problem`; when this gateway drains, the stream just ends."""
    try:
        async with aclosing(parts):
            yield BEGINNING
            async for part in parts:
                yield part
    except Unavailable:
        return
    except (TenureError, PeerFailed) as error:
        yield event_bytes("problem", problem_of(error))
