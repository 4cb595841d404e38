"""The calls that this process runs, and the listeners to their events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

from services.tools.calls.accept_rules import RunnerIdentity
from services.tools.calls.records import CallKey, CallRequest
from services.tools.tool import Tool
from tenure.domain.stops import Stop
from tenure.domain.tools import Outcome, ProgramUsage, encode

_MAX_UNREAD_CHARACTERS: Final = 64 * 1024
STOPPING_SECONDS: Final = 2.0
ANNOUNCE_SECONDS: Final = 10.0
"""How often the listeners to a call hear that it is being settled: a worker gives a call up that is silent for long."""


class StopReason(StrEnum):
    """Why a run is stopped from outside."""

    CLOSED = "CLOSED"  # the owner that requested the call ended the task: the outcome is CANCELLED
    FENCED = "FENCED"  # the task was ended under a newer epoch: the outcome says so
    LAPSED = "LAPSED"  # this runner's life is over: the other replicas settle the call
    DRAINED = "DRAINED"  # the process ends: as LAPSED, but at once
    STOPPED = "STOPPED"  # an operator stopped it: the call runs again after the stop
    SUPERSEDED = "SUPERSEDED"  # of a call that its caller runs: the record no longer waits for this run


class Superseded(Exception):  # noqa: N818  a signal to the run's followers, not an error
    """The record belongs to a newer attempt, or the run was stopped before its effect began: accept the call again."""


@dataclass(frozen=True, slots=True)
class Started:
    """The effect begins. `joined`: it had begun before this request."""

    call_attempt: int
    joined: bool


@dataclass(frozen=True, slots=True)
class Output:
    """Output of the running tool. Parts of it may be dropped; the outcome has all of it."""

    text: str


@dataclass(frozen=True, slots=True)
class RunHere:
    """The order to the caller to run the call itself, as this attempt, within the timeout.

    `again`: it was given before, and begins no run of an UNSAFE call: time has passed, and a stop may have come.
    """

    call_attempt: int
    idempotency_key: str
    timeout_seconds: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class Settling:
    """The end of this attempt is unknown, and the runner settles the call."""

    call_attempt: int


Event = Started | Output | RunHere | Settling | Outcome


class EventReader(Protocol):
    """Reads the events of a call. Its methods are called in the event loop and must not raise."""

    def put(self, event: Event) -> None:
        """Gets an event; the outcome is the last one."""

    def fail(self, error: Exception) -> None:
        """Gets the error that ends the events in place of an outcome."""


class Listener:
    """A reader of a run. It gets output at most once in each round of the event loop, and loses what is too much."""

    def __init__(self, run: RunningCall, reader: EventReader, *, joined: bool) -> None:
        self._run, self._reader, self._joined = run, reader, joined
        self._unread: list[str] = []
        self._characters = 0

    def leave(self) -> None:
        """Reads no more events. The run goes on."""
        self._run.drop_listener(self)
        self._unread.clear()

    def start(self) -> None:
        if not self._joined:
            self._reader.put(Started(self._run.call_attempt, joined=False))

    def order(self, order: RunHere) -> None:
        self._reader.put(order)

    def note_settling(self, settling: Settling) -> None:
        self._reader.put(settling)

    def hear(self, text: str) -> None:
        if self._characters + len(text) > _MAX_UNREAD_CHARACTERS:
            return
        if not self._unread:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._unread.append(text)
        self._characters += len(text)

    def end(self, ending: Outcome | Exception) -> None:
        self._pass_on()
        if isinstance(ending, Exception):
            self._reader.fail(ending)
        else:
            self._reader.put(ending)

    def _pass_on(self) -> None:
        text = "".join(self._unread)
        self._unread.clear()
        self._characters = 0
        if text:
            self._reader.put(Output(encode(text).decode()))  # a tool's text may have surrogates, which no message has


@dataclass(eq=False, slots=True)
class RunningCall:
    """The run of one call attempt.

    `ending`: the outcome once it is durable, or the error that tells the listeners what to do instead. `marked`: the
    record may say STARTED. `started`: the effect has begun. `effect`: the asyncio task of the tool, once it exists.
    `order`: the order that its callers got to run it themselves. `stopped_by`: the stop of an operator that cancels it.
    `sent_before`: an earlier attempt or try of the call
    may have had its effect. `only_settles`: the effect is not begun, because the runner of an earlier attempt was lost.
    """

    request: CallRequest
    call_attempt: int
    ending: Outcome | Exception | None = None
    marked: bool = False
    started: bool = False
    stop: StopReason | None = None
    stopped_by: Stop | None = None
    effect: asyncio.Task[Outcome] | None = None
    listeners: set[Listener] = field(default_factory=set)
    usage: ProgramUsage | None = None
    authorised_epoch: int = 0
    order: RunHere | None = None
    sent_before: bool = False
    only_settles: bool = False
    _listeners_changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.authorise(self.request.claims.epoch)

    def authorise(self, epoch: int) -> None:
        """Raises the epoch that authorises the run: a newer owner that joins the call takes it over."""
        self.authorised_epoch = max(self.authorised_epoch, epoch)

    def note_usage(self, usage: ProgramUsage) -> None:
        """Records what the call's program used."""
        self.usage = usage

    @property
    def key(self) -> CallKey:
        return self.request.key

    @property
    def idempotency_key(self) -> str:
        """The key by which other systems recognise a repeat."""
        return self.request.presented_key

    @property
    def name(self) -> str:
        """The name of the call in the names of its asyncio tasks."""
        return f"{self.request.claims.task_id}/{self.key.call_id}"

    def output_limit_bytes(self, tool: Tool) -> int:
        """Returns how many bytes of the output the model can read."""
        most_bytes = tool.definition.output_limit_bytes
        return min(most_bytes, self.request.output_limit_bytes or most_bytes)

    def emit(self, text: str) -> None:
        """Sends output to all listeners."""
        for listener in self.listeners:
            listener.hear(text)

    def mark_started(self) -> None:
        if not self.started:
            self.started = True
            for listener in list(self.listeners):
                listener.start()

    def announce_settling(self) -> None:
        """Tells all listeners that the call is being settled: a listener that hears nothing gives the call up."""
        for listener in list(self.listeners):
            listener.note_settling(Settling(self.call_attempt))

    def order_caller(self, timeout_seconds: float) -> None:
        """Orders the callers, those that listen and those that join later, to run the call themselves."""
        self.order = RunHere(self.call_attempt, self.idempotency_key, timeout_seconds)
        for listener in list(self.listeners):
            listener.order(self.order)

    def drop_listener(self, listener: Listener) -> None:
        self.listeners.discard(listener)
        self._listeners_changed.set()

    async def wait_listened(self, *, listened: bool) -> None:
        """Returns when at least one reader, or none, follows the run. For one waiting coroutine at a time."""
        while bool(self.listeners) is not listened:
            self._listeners_changed.clear()
            await self._listeners_changed.wait()

    def settle(self, ending: Outcome | Exception) -> None:
        """Ends the run for its listeners. Only the first ending counts."""
        if self.ending is not None:
            return
        self.ending = ending
        listeners = list(self.listeners)
        self.listeners.clear()
        self._listeners_changed.set()
        for listener in listeners:
            listener.end(ending)

    def request_stop(self, reason: StopReason) -> None:
        """Cancels the effect, or prevents its begin and then ends the run as Superseded. The first reason counts."""
        if self.stop is None:
            self.stop = reason
            if self.effect is not None:
                self.effect.cancel()
            else:
                self.settle(Superseded())

    def follow(self, reader: EventReader, *, joined: bool) -> Listener:
        """Gives the reader all events from now on; Superseded, or the error that ended the run, in place of an outcome.

        `joined`: the call ran before this reader requested it.
        """
        listener = Listener(self, reader, joined=joined)
        if joined:
            reader.put(Started(self.call_attempt, joined=True))
        elif self.started:
            listener.start()
        if self.ending is None:
            self.listeners.add(listener)
            self._listeners_changed.set()
            if self.order is not None:
                listener.order(replace(self.order, again=True))
        else:
            listener.end(self.ending)
        return listener


class Companion(Protocol):
    """Resources of tasks that outlive a call and end with the task, such as a task's own MCP servers."""

    def task_ids(self) -> list[str]:
        """Returns the tasks that have such resources."""

    def end_task(self, task_id: str, epoch: int) -> None:
        """Ends the resources that the task has under this epoch or an older one."""


class RunningCalls:
    """The runs of this process, by call. A run is listed until its outcome is durable or cannot come any more."""

    def __init__(self) -> None:
        self._by_key: dict[CallKey, RunningCall] = {}
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._companions: list[Companion] = []

    def hold(self, task: asyncio.Task[Any], at_end: Callable[[asyncio.Task[Any]], None] | None = None) -> None:
        """Keeps an asyncio task in `unfinished` until it ends: an effect that does not stop outlives its run."""

        def end(task: asyncio.Task[Any]) -> None:
            self._unfinished.discard(task)
            if at_end is not None:
                at_end(task)

        self._unfinished.add(task)
        task.add_done_callback(end)

    def unfinished(self) -> AbstractSet[asyncio.Task[Any]]:
        """Returns the asyncio tasks of runs and effects that have not ended."""
        return self._unfinished

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, request: CallRequest, call_attempt: int) -> RunningCall:
        """Adds the run of a new attempt, in place of a superseded one; that one finds out when it writes its record."""
        if request.runs_at_caller:
            self.supersede(request.key)
        run = self._by_key[request.key] = RunningCall(request, call_attempt)
        return run

    def supersede(self, key: CallKey) -> None:
        """Ends the run of a call that its caller runs: the record has a newer attempt, or is in doubt."""
        if (run := self._by_key.get(key)) is not None:
            run.request_stop(StopReason.SUPERSEDED)

    def conclude(self, request: CallRequest, outcome: Outcome) -> None:
        """Ends the run of a call that its caller runs: the outcome is in the record.

        Readers under another claim learn it from the record, where their claim is compared with the fence.
        """
        run = self._by_key.get(request.key)
        if run is not None and run.request.fence == request.fence:
            run.settle(outcome)
        self.supersede(request.key)

    def remove(self, run: RunningCall) -> None:
        if self._by_key.get(run.key) is run:
            del self._by_key[run.key]

    def running(self) -> list[RunningCall]:
        """Returns the runs of this process."""
        return list(self._by_key.values())

    def find(self, key: CallKey) -> RunningCall | None:
        return self._by_key.get(key)

    def identity(self, runner_id: UUID, key: CallKey) -> RunnerIdentity:
        """Returns what the rules of a request need to know of this process."""
        run = self._by_key.get(key)
        if run is None:
            return RunnerIdentity(runner_id, None)
        return RunnerIdentity(runner_id, run.call_attempt, ordered=run.order is not None)

    def accompany(self, companion: Companion) -> None:
        """Registers a companion: `stop_task` ends its resources of the task."""
        self._companions.append(companion)

    def task_ids(self) -> list[UUID]:
        """Returns the tasks with running calls or with resources of companions."""
        with_resources = {UUID(task_id) for companion in self._companions for task_id in companion.task_ids()}
        return sorted({key.task_id for key in self._by_key} | with_resources)

    def stop_task(self, task_id: UUID, epoch: int) -> None:
        """Stops the runs and resources of an ended task that were authorised by `epoch` or an older epoch."""
        for companion in self._companions:
            companion.end_task(str(task_id), epoch)
        for run in list(self._by_key.values()):
            if run.key.task_id == task_id and run.authorised_epoch <= epoch:
                run.request_stop(StopReason.FENCED if run.authorised_epoch < epoch else StopReason.CLOSED)

    async def stop_all(self, reason: StopReason) -> None:
        """Stops all runs and waits up to STOPPING_SECONDS for their effects to end."""
        runs = list(self._by_key.values())
        for run in runs:
            run.request_stop(reason)
        if effects := {run.effect for run in runs if run.effect is not None}:
            await asyncio.wait(effects, timeout=STOPPING_SECONDS)
