"""The calls this process is running, and those who listen to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

from services.tools.calls.records import CallKey, CallRequest
from tenure.domain.tools import Outcome, ProgramUsage

_MOST_UNREAD_CHARACTERS: Final = 64 * 1024
STOPPING_SECONDS: Final = 2.0


class StopReason(StrEnum):
    """Why a run is stopped from outside."""

    CLOSED = "CLOSED"  # its task was ended by the owner that asked for the call: it is recorded as CANCELLED
    FENCED = "FENCED"  # its task was ended under a newer epoch: it is recorded as such
    LAPSED = "LAPSED"  # this runner is no longer trusted: others judge what became of it
    DRAINED = "DRAINED"  # the process ends: as LAPSED, and at once


class Superseded(Exception):  # noqa: N818  news for those who wait, no error
    """The attempt is not the call's any more: ask again, the record knows."""


@dataclass(frozen=True, slots=True)
class Started:
    """The effect begins, or had begun."""

    call_attempt: int
    joined: bool


@dataclass(frozen=True, slots=True)
class Output:
    """Some output, for show."""

    text: str


Event = Started | Output | Outcome


class Listener:
    """One who listens to a run. What it does not read in time is dropped, except that the run started and ended."""

    def __init__(self) -> None:
        self._unread: list[str] = []
        self._characters = 0
        self.changed = asyncio.Event()

    def tell(self, text: str) -> None:
        if self._characters + len(text) <= _MOST_UNREAD_CHARACTERS:
            self._unread.append(text)
            self._characters += len(text)
        self.changed.set()

    def take(self) -> str:
        """All that is unread."""
        text = "".join(self._unread)
        self._unread.clear()
        self._characters = 0
        self.changed.clear()
        return text


@dataclass(eq=False, slots=True)
class RunningCall:
    """One attempt of one call. `ended` has the outcome once it is durable, or what its listeners are to do instead."""

    request: CallRequest
    call_attempt: int
    ended: asyncio.Future[Outcome]
    marked: bool = False
    started: bool = False
    stop: StopReason | None = None
    effect: asyncio.Task[Outcome] | None = None
    listeners: set[Listener] = field(default_factory=set)
    usage: ProgramUsage | None = None
    authorised_epoch: int = 0

    def __post_init__(self) -> None:
        self.authorise(self.request.fence.epoch)

    def authorise(self, epoch: int) -> None:
        """An owner asks for it; a newer one that joins takes it over."""
        self.authorised_epoch = max(self.authorised_epoch, epoch)

    def note_usage(self, usage: ProgramUsage) -> None:
        """What its program used."""
        self.usage = usage

    @property
    def key(self) -> CallKey:
        return self.request.key

    def emit(self, text: str) -> None:
        """Show output to everybody who listens."""
        for listener in self.listeners:
            listener.tell(text)

    def mark_started(self) -> None:
        self.started = True
        self._wake()

    def settle(self, ending: Outcome | Exception) -> None:
        """The end, told once."""
        if self.ended.done():
            return
        if isinstance(ending, Exception):
            self.ended.set_exception(ending)
            self.ended.exception()  # nobody may be listening
        else:
            self.ended.set_result(ending)
        self._wake()

    def request_stop(self, reason: StopReason) -> None:
        """Stop the effect, or keep it from beginning: then nobody needs to wait on. The first reason counts."""
        if self.stop is None:
            self.stop = reason
            if self.effect is not None:
                self.effect.cancel()
            else:
                self.settle(Superseded())

    async def follow(self, *, joined: bool) -> AsyncGenerator[Event, None]:
        """Everything from now on, the outcome last. Raises Superseded, or what kept the run from its end."""
        with self._listening() as listener:
            if joined:
                yield Started(self.call_attempt, joined=True)
            last_joined = joined
            while True:
                if self.started and not last_joined:
                    last_joined = True
                    yield Started(self.call_attempt, joined=False)
                if text := listener.take():
                    yield Output(text)
                if self.ended.done():
                    break
                await listener.changed.wait()
        yield self.ended.result()

    @contextmanager
    def _listening(self) -> Iterator[Listener]:
        listener = Listener()
        self.listeners.add(listener)
        try:
            yield listener
        finally:
            self.listeners.discard(listener)

    def _wake(self) -> None:
        for listener in self.listeners:
            listener.changed.set()


class Companion(Protocol):
    """What tasks have here besides calls that run, and what is to end with them, such as servers of their own."""

    def task_ids(self) -> list[str]:
        """The tasks that have something."""

    def end_task(self, task_id: str, epoch: int) -> None:
        """The task is ended: what it has under this epoch or an older one."""


class RunningCalls:
    """By call. A run is listed until its outcome is durable or it is known that there will be none."""

    def __init__(self) -> None:
        self._by_key: dict[CallKey, RunningCall] = {}
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._companions: list[Companion] = []

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Remember what goes on until it truly ends: an effect that does not stop outlasts its run."""
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    def unfinished(self) -> AbstractSet[asyncio.Task[Any]]:
        """Everything that goes on."""
        return self._unfinished

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, request: CallRequest, call_attempt: int) -> RunningCall:
        """A new attempt; it takes the place of one that it displaced, which will find out by itself."""
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        run = self._by_key[request.key] = RunningCall(request, call_attempt, ended)
        return run

    def remove(self, run: RunningCall) -> None:
        if self._by_key.get(run.key) is run:
            del self._by_key[run.key]

    def find(self, key: CallKey) -> RunningCall | None:
        return self._by_key.get(key)

    def attempt_of(self, key: CallKey) -> int | None:
        """Which attempt of the call runs here, if any."""
        run = self._by_key.get(key)
        return run.call_attempt if run is not None else None

    def accompany(self, companion: Companion) -> None:
        """From now on the companion is told of tasks that end."""
        self._companions.append(companion)

    def task_ids(self) -> list[UUID]:
        """The tasks that have something here: calls that run, or what stays between calls."""
        staying = {UUID(task_id) for companion in self._companions for task_id in companion.task_ids()}
        return sorted({key.task_id for key in self._by_key} | staying)

    def stop_task(self, task_id: UUID, epoch: int) -> None:
        """Stop what was authorised up to `epoch`: the task is ended."""
        for companion in self._companions:
            companion.end_task(str(task_id), epoch)
        for run in list(self._by_key.values()):
            if run.key.task_id == task_id and run.authorised_epoch <= epoch:
                run.request_stop(StopReason.FENCED if run.authorised_epoch < epoch else StopReason.CLOSED)

    async def stop_all(self, reason: StopReason) -> None:
        """Stop everything, and wait for the effects' ends, for a while."""
        runs = list(self._by_key.values())
        for run in runs:
            run.request_stop(reason)
        if effects := {run.effect for run in runs if run.effect is not None}:
            await asyncio.wait(effects, timeout=STOPPING_SECONDS)
