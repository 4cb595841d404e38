"""Follows one Execute from its accept to its outcome, by callbacks: no asyncio task waits for a call that runs here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from services.tools.calls.records import CallKey
from services.tools.calls.runs import (
    ANNOUNCE_SECONDS,
    Event,
    EventReader,
    Listener,
    Output,
    RunningCall,
    Settling,
    Started,
    Superseded,
)
from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.tools import Outcome
from tenure.runtime.store.batching import Answer

_MAX_ACCEPTS: Final = 20
_MAX_UNREAD_CHARACTERS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class RunningHere:
    """The call runs in this process."""

    run: RunningCall
    joined: bool


@dataclass(frozen=True, slots=True)
class RunningElsewhere:
    """The call runs in another replica."""

    call_attempt: int


@dataclass(frozen=True, slots=True)
class OtherCallRuns:
    """Another call makes the effect, anywhere. This call waits for its end, at most `seconds`."""

    holder: CallKey
    seconds: float


ENDED: Final = 0
"""In place of a call attempt: the end of the call."""

Accepted = Outcome | RunningHere | RunningElsewhere | OtherCallRuns
EnqueueAccept = Callable[[Answer[Accepted], bool], None]
"""Queues the call to be accepted. False: it does not wait for another call with its effect key any more.

Raises LimitReached at once.
"""
WaitElsewhere = Callable[[CallKey, int, Callable[[], None]], Awaitable[None]]
"""Returns when this attempt of the call no longer runs in another replica, or with `ENDED` when the call has ended.

Calls the function while the attempt is being settled.
"""


class CallFollower:
    """Has a call accepted, gives its events to the reader, and has it accepted again when its attempt is superseded."""

    def __init__(
        self, key: CallKey, reader: EventReader, enqueue: EnqueueAccept, wait_elsewhere: WaitElsewhere
    ) -> None:
        self._key, self._reader, self._enqueue, self._wait_elsewhere = key, reader, enqueue, wait_elsewhere
        self._is_patient = True
        self._patient_until: float | None = None
        self._accepts_left = _MAX_ACCEPTS
        self._sent_started = self._has_left = False
        self._listener: Listener | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._settling_due = 0.0

    def begin(self) -> None:
        """Has the call accepted."""
        if self._has_left:
            return
        if not self._accepts_left:
            message = (
                f"{_MAX_ACCEPTS} attempts of this call were superseded during this request; send the request again"
            )
            self._reader.fail(Unavailable(message, retry_after_seconds=1.0))
            return
        self._accepts_left -= 1
        try:
            self._enqueue(self._follow, self._is_patient)
        except TenureError as error:
            self._reader.fail(error)

    def leave(self) -> None:
        """Gives no more events to the reader. The call goes on, also one that is being accepted."""
        self._has_left = True
        if self._listener is not None:
            self._listener.leave()
        if self._waiting is not None:
            self._waiting.cancel()

    def put(self, event: Event) -> None:
        """Passes on an event of the run; a start only once."""
        if isinstance(event, Started):
            if self._sent_started:
                return
            self._sent_started = True
        elif isinstance(event, Outcome):
            self._listener = None  # it refers to this follower: the two would be left to the garbage collector
        self._reader.put(event)

    def fail(self, error: Exception) -> None:
        """Passes on the error of the run, or has a superseded call accepted again."""
        if isinstance(error, Superseded):
            self.begin()  # the record has a newer attempt or an outcome
        else:
            self._reader.fail(error)

    def _follow(self, accepted: Accepted | Exception) -> None:
        if self._has_left:
            return
        match accepted:
            case RunningHere(run, joined):
                self._listener = run.follow(self, joined=joined)
            case RunningElsewhere(call_attempt):
                self.put(Started(call_attempt, joined=True))
                self._waiting = asyncio.create_task(self._wait(self._key, call_attempt))
            case OtherCallRuns(holder, seconds):
                self._waiting = asyncio.create_task(self._wait_for_effect(holder, seconds))
            case Exception():
                self._reader.fail(accepted)
            case outcome:
                self._reader.put(outcome)

    async def _wait_for_effect(self, holder: CallKey, seconds: float) -> None:
        """Waits for the other call, and for all that have the key after it, at most `seconds` together.

        Says so from time to time, as of a settlement: the time of the wait comes before that of the call itself.
        """
        now = asyncio.get_running_loop().time
        self._patient_until = now() + seconds if self._patient_until is None else self._patient_until
        waiting = asyncio.create_task(self._wait(holder, ENDED))
        try:
            while (left := self._patient_until - now()) > ANNOUNCE_SECONDS and not waiting.done():
                await asyncio.wait({waiting}, timeout=ANNOUNCE_SECONDS)
                if not waiting.done():
                    self._note_settling(ENDED)
            await asyncio.wait({waiting}, timeout=left)
        finally:
            is_over = not waiting.done()
            waiting.cancel()
        if is_over:
            self._is_patient = False
            self.begin()

    async def _wait(self, key: CallKey, call_attempt: int) -> None:
        try:
            await self._wait_elsewhere(key, call_attempt, partial(self._note_settling, call_attempt))
        except Exception as error:  # noqa: BLE001  the reader gets every error
            self._reader.fail(error)
        else:
            self.begin()

    def _note_settling(self, call_attempt: int) -> None:
        """Passes on, from time to time, that the other replica settles the call, or that another call runs first."""
        now = asyncio.get_running_loop().time()
        if now >= self._settling_due:
            self._settling_due = now + ANNOUNCE_SECONDS
            self._reader.put(Settling(call_attempt))


class EventQueue:
    """The events of one call as an asynchronous iterator. Output that is not read in time is dropped."""

    def __init__(self) -> None:
        self._unread: deque[Event] = deque()
        self._characters = 0
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, event: Event) -> None:
        if isinstance(event, Output):
            if self._characters + len(event.text) > _MAX_UNREAD_CHARACTERS:
                return
            self._characters += len(event.text)
        self._unread.append(event)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._changed.set()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yields the events, the outcome last. Raises the error that came in its place."""
        while True:
            while self._unread:
                event = self._unread.popleft()
                if isinstance(event, Output):
                    self._characters -= len(event.text)
                yield event
                if isinstance(event, Outcome):
                    return
            if self._error is not None:
                raise self._error
            await self._changed.wait()
            self._changed.clear()
