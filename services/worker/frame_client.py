"""Keeps one stream to a service for all tasks of the worker.

A frame carries every message that became ready while the last write was in flight. There is no timer: one message alone
is never delayed, and many together cost little more than one.

After a broken stream all unanswered messages are sent again. That is safe because both services recognise a repeat: a
commit by its number and id, a call by its call id.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Never

import grpc
from google.protobuf.message import Message

from tenure.domain.errors import InvalidRequest, LimitReached, TenureError, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.process import heed_cancellation, note_progress
from tenure.runtime.rpc.client import CALL_CANCELLED, TenureChannel
from tenure.runtime.rpc.status import OUTCOME_UNKNOWN, PeerFailed
from tenure.runtime.task_group import TaskGroup
from tenure.validators.common import MAX_FRAME_BYTES, MAX_FRAME_ITEMS
from tenure.wire.common import refusal_to_domain

_log: Final = logging.getLogger(__name__)
ENVELOPE_BYTES: Final = 24
"""The upper bound of the bytes around each message of a frame: its tag, and two headers with their lengths."""
MAX_UNANSWERED: Final = 8192
SILENCE_SECONDS: Final = 60.0
"""The silence limit of the duty `run`: many times the duration of a stream's break and of its replacement."""

_IDLE_CHECK_SECONDS: Final = 5.0
RECONNECT: Final = RetryPolicy(initial_seconds=0.05, factor=2.0, cap_seconds=1.0)

OnEvent = Callable[[Any], None]
Tagged = tuple[int, Any]


@dataclass(slots=True)
class _Pending:
    """A message without its final answer.

    `size`: the upper bound of its bytes in a frame. `stream`: the number of the last stream that carried it.
    """

    message: Message
    size: int
    on_event: OnEvent
    stream: int = 0
    limit: asyncio.Timeout | None = None


@dataclass(frozen=True, slots=True)
class FrameShape:
    """The differences between the two services: how to connect, to build a frame and to split one.

    `channel`: that of `connect`.
    """

    name: str
    channel: TenureChannel
    connect: Callable[[], Any]
    build: Callable[[list[Tagged]], Message]
    events: Callable[[Any], Iterable[Tagged]]


class FrameClient:
    """Sends messages under tags and passes on their events. Needs `run`, an endless duty, to send anything."""

    def __init__(self, shape: FrameShape, first_tag: int = 1) -> None:
        self._shape = shape
        self._broken = metrics.cell("tenure_worker_streams_broken_total", peer=shape.name)
        self._pending: OrderedDict[int, _Pending] = OrderedDict()
        self._unsent: deque[int] = deque()
        self._follow_ups: deque[tuple[int, Message, int]] = deque()
        self._ready = asyncio.Event()
        self._next_tag = first_tag
        self._failures = 0
        self._stream = 0
        self._given_up = asyncio.Event()

    def send(self, message: Message, on_event: OnEvent) -> int:
        """Sends `message` as soon as possible and calls `on_event` with each event.

        Raises LimitReached when too many messages are unanswered, and InvalidRequest when the message fits into no
        frame: such a frame would break the stream, again after each new connection, for all unanswered messages.
        """
        size = message.ByteSize() + ENVELOPE_BYTES
        if size > MAX_FRAME_BYTES:
            text = f"at most {MAX_FRAME_BYTES} bytes go to {self._shape.name} in one frame, and this message has {size}"
            raise InvalidRequest(f"{text}; send less in one message")
        if len(self._pending) >= MAX_UNANSWERED:
            raise LimitReached(f"{MAX_UNANSWERED} messages to {self._shape.name} are unanswered; try again later")
        tag, self._next_tag = self._next_tag, self._next_tag + 1
        self._pending[tag] = _Pending(message, size, on_event)
        self._unsent.append(tag)
        self._ready.set()
        return tag

    def follow_up(self, tag: int, message: Message, first: Message) -> None:
        """Sends a second message under a tag that has no final answer.

        `first`: replaces the first message, which a later stream sends alone: it has what the second message says.
        """
        pending = self._pending.get(tag)
        if pending is None:
            return
        pending.message, pending.size = first, first.ByteSize() + ENVELOPE_BYTES
        if pending.stream == self._stream:
            self._follow_ups.append((tag, message, message.ByteSize() + ENVELOPE_BYTES))
            self._ready.set()

    def forget(self, tag: int) -> None:
        """Ignores further events of this tag. A message that was not sent yet is never sent."""
        self._pending.pop(tag, None)

    def _give_up_stream_of(self, tag: int) -> None:
        """Ends the stream that carried this message.

        The replica behind it cannot answer, and the next stream may reach another replica.
        """
        pending = self._pending.get(tag)
        if pending is not None and pending.stream == self._stream:
            self._given_up.set()

    async def last_event(self, tag: int, event: asyncio.Future[Any], seconds: float, what_is_late: str) -> Any:
        """Waits for the last event of a message, and forgets its tag. Raises the refusal that the event is.

        Raises Unavailable when it does not come in time: the outcome is unknown.
        """
        try:
            async with asyncio.timeout(seconds) as limit:
                if (pending := self._pending.get(tag)) is not None:
                    pending.limit = limit
                last = await event
            if last.HasField("refusal"):
                raise refusal_to_domain(last.refusal)
        except TimeoutError:
            self._give_up_stream_of(tag)
            message = f"{what_is_late} within {seconds:g} s"
            raise Unavailable(message, reason="TIMEOUT", metadata=OUTCOME_UNKNOWN) from None
        except Unavailable:
            self._give_up_stream_of(tag)
            raise
        finally:
            self.forget(tag)
        return last

    def wait_longer(self, tag: int, seconds: float) -> None:
        """Waits for the last event of a message for so long from now on, if something waits for it."""
        pending = self._pending.get(tag)
        if pending is not None and pending.limit is not None and not pending.limit.expired():
            pending.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    @property
    def in_reach(self) -> bool:
        """False after a broken stream, until a later one brings a frame or a connection is ready."""
        return not self._failures or self._shape.channel.get_state() is grpc.ChannelConnectivity.READY

    async def run(self) -> None:
        """Keeps a stream open for ever."""
        while True:
            try:
                await self._one_stream()
            except* (TenureError, PeerFailed) as broken:
                self._failures += 1
                self._report(broken.exceptions[0])
            heed_cancellation()
            note_progress()
            self._broken.value += 1
            await asyncio.sleep(RECONNECT.wait_seconds(self._failures, random.random()))

    def _report(self, error: Exception) -> None:
        """Logs the end of a stream. A worker that stops closes its streams itself: that is not a problem to warn of."""
        is_own = isinstance(error, Unavailable) and error.reason == CALL_CANCELLED
        fields = {"peer": self._shape.name, "unanswered": len(self._pending), "why": str(error)}
        if is_own:
            _log.debug("this worker closed a stream", extra=fields)
        else:
            _log.warning("a stream broke and is opened again", extra=fields)

    async def _one_stream(self) -> None:
        call = self._shape.connect()
        self._stream += 1
        self._given_up.clear()
        self._unsent = deque(self._pending)  # all unanswered messages, in the order of `send`
        self._follow_ups.clear()
        try:
            async with TaskGroup() as group:
                group.create_task(self._give_up())
                group.create_task(self._write(call))
                group.create_task(self._read(call))
        finally:
            call.cancel()

    async def _write(self, call: Any) -> Never:
        while True:
            while not (batch := self.take_batch()):
                self._ready.clear()
                await self._ready.wait()
            await call.write(self._shape.build(batch))

    async def _read(self, call: Any) -> Never:
        while (frame := await call.read()) is not grpc.aio.EOF:
            self._failures = 0
            for tag, event in self._shape.events(frame):
                pending = self._pending.get(tag)
                if pending is not None:
                    pending.on_event(event)
        raise Unavailable(f"{self._shape.name} ended the stream", reason="STREAM_ENDED")

    async def _give_up(self) -> Never:
        while not self._given_up.is_set():
            note_progress()  # a stream may be idle for hours; silence is a fault only between two streams
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_CHECK_SECONDS):
                    await self._given_up.wait()
        raise Unavailable(f"this replica of {self._shape.name} gave no usable answer", reason="STREAM_GIVEN_UP")

    def take_batch(self) -> list[Tagged]:
        """Returns the messages of the next frame: at least one if any is unsent."""
        batch: list[Tagged] = []
        left_bytes = MAX_FRAME_BYTES
        while self._unsent and len(batch) < MAX_FRAME_ITEMS:
            pending = self._pending.get(self._unsent[0])
            if pending is not None:
                left_bytes -= pending.size
                if batch and left_bytes < 0:
                    break
                pending.stream = self._stream
                batch.append((self._unsent[0], pending.message))
            self._unsent.popleft()
        while self._follow_ups and len(batch) < MAX_FRAME_ITEMS:
            tag, message, size = self._follow_ups[0]
            left_bytes -= size
            if batch and left_bytes < 0:
                break
            self._follow_ups.popleft()
            batch.append((tag, message))
        return batch
