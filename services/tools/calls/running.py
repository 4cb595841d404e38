"""Runs accepted calls: waits for the lane, marks the call STARTED, runs the effect, records the outcome.

Mostly the lane has a free place. Then the first write marks the call STARTED, too.

A call that this process runs goes on to its end, even if its caller goes away. Only the end of the task stops it
(`StopReason.CLOSED`, `StopReason.FENCED`), a stop of an operator (`StopReason.STOPPED`), or the end of this runner's
life (`StopReason.LAPSED`, `StopReason.DRAINED`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Never, Self
from uuid import UUID

from services.tools.calls.effect_keys import undone_by
from services.tools.calls.effects import BEGINS_WITHIN_SECONDS, MayBegin, NeverBegan, PutOff, ToolEffect
from services.tools.calls.lanes import Lane, subtract_one
from services.tools.calls.metrics import count_calls_in_doubt, count_outcome
from services.tools.calls.records import CallKey, CallRequest, doubt_note, pack_outcome
from services.tools.calls.runs import STOPPING_SECONDS, RunningCall, RunningCalls, StopReason, Superseded
from services.tools.calls.settling import Checks, Settler
from services.tools.calls.start_and_finish import (
    OutcomeMark,
    StartMark,
    release_start,
    until_written,
    withdraw_start,
)
from services.tools.calls.stops import StopView
from services.tools.output import OutputStore
from services.tools.runners.liveness import Liveness
from services.tools.tool import RunnerStopped, Tool, ToolInDoubt, ToolWork
from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable
from tenure.domain.fairness import has_share
from tenure.domain.fencing import describe_epoch
from tenure.domain.in_doubt import MAY_HAVE_HAPPENED, outcome_in_doubt
from tenure.domain.settlement import HARMLESS, leaves_doubt
from tenure.domain.tools import CallState, Outcome, OutcomeStatus
from tenure.runtime.failpoints import failpoint, failpoint_armed
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import log_context
from tenure.runtime.request_context import within_trace
from tenure.runtime.store.batching import Batcher
from tenure.runtime.store.postgres import Pool

_log: Final = logging.getLogger(__name__)
_MAX_STARTS: Final = 3
_LONGEST_CHARACTER_BYTES: Final = 4
_FAULT: Final = "A fault of the tool service broke off this call after it had begun."
_LOST_RUNNER: Final = "The process that ran this call died."


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """The limits of a runner.

    `lanes`: the calls that run at once, by lane. `max_accepted`: the calls that run or wait for their lane.
    `drain_seconds`: the wait for running calls when the process stops.
    """

    lanes: Mapping[str, int]
    max_accepted: int = 4096
    drain_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class CallWriters:
    """The batchers of a runner's second and third writes."""

    starts: Batcher[StartMark, bool]
    finishes: Batcher[OutcomeMark, bool]


@dataclass(frozen=True, slots=True, eq=False)
class ReadyStart:
    """A place in the lane of a call that the first write records as STARTED, and the permission to begin its effect."""

    lane: Lane
    tenant: str
    may_begin: MayBegin


class Runner:
    """Runs calls while its `async with` is open; its end waits `drain_seconds` for them, then stops them."""

    def __init__(
        self,
        pool: Pool,
        runs: RunningCalls,
        liveness: Liveness,
        writers: CallWriters,
        output_store: OutputStore,
        limits: RunnerLimits,
        stops: StopView,
        checks: Checks | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self.runs = runs
        self._output_store = output_store
        self._pool, self._liveness = pool, liveness
        self._writers, self._limits = writers, limits
        self._lanes = {lane: Lane(count) for lane, count in limits.lanes.items()}
        self._settler = Settler(pool, liveness, self._lanes, runs.hold, stops, checks, stopping or asyncio.Event())
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_tenant, self._own_of_tenant = Counter[str](), Counter[str]()
        self._sampling = ExitStack()
        self._ready: set[ReadyStart] = set()
        self._is_closing = False
        self._none_ready = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._sampling.enter_context(metrics.on_sample(self._sample))
        return self

    def _sample(self) -> None:
        """Reports the calls that this runner has, running or waiting for their lane."""
        metrics.gauge("tenure_tool_calls_held", len(self._tasks))
        metrics.gauge("tenure_tool_calls_held_max", self._limits.max_accepted)

    async def __aexit__(self, *_: object) -> None:
        self._sampling.close()
        self._is_closing = True
        if self._ready:  # a call that is being recorded as STARTED begins here, or its start is withdrawn
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.drain_seconds):
                    await self._none_ready.wait()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.drain_seconds)
        await self.runs.stop_all(StopReason.DRAINED)
        if self._tasks:  # calls whose effect never began withdraw their start
            await asyncio.wait(self._tasks, timeout=STOPPING_SECONDS)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def check_room(self, request: CallRequest) -> None:
        """Raises LimitReached when this runner has too many calls, and not this one among them.

        The outcome of a call that its caller runs ends the call's run here: it must not wait for the room of its run.
        """
        if self.runs.find(request.key) is not None:
            return
        tenant, free = request.claims.tenant, self._limits.max_accepted - len(self._tasks)
        own = self._own_of_tenant[tenant] if request.runs_at_caller else None
        if free <= 0:
            raise _too_many(f"{self._limits.max_accepted} calls already run or wait on this replica")
        if not has_share(free, self._of_tenant[tenant], own):
            raise _too_many("the tenant has its share of the calls that may run or wait on this replica")

    def shrink_lane(self, lane: str) -> None:
        """Runs one call less of the lane at once from now on: a slot that its calls need is lost."""
        self._lanes[lane].shrink()
        _log.error("a lane has lost a place", extra={"lane": lane, "places": self._lanes[lane].places})

    def ready_start(self, work: ToolWork, tenant: str, runner_id: UUID) -> ReadyStart | None:
        """Takes a free place in the lane of a call, so that its first write may mark it STARTED.

        None: the lane is full, or this runner ends. Pass the place to `begin` or `give_back`. The time in which the
        effect may begin counts from now.
        """
        lane = self._lanes[work.tool.lane]
        if self._is_closing or failpoint_armed("tools.after_accept", "tools.before_start") or not lane.take(tenant):
            return None
        ready = ReadyStart(lane, tenant, _MayBegin(self._liveness, runner_id))
        self._ready.add(ready)
        return ready

    def give_back(self, ready: ReadyStart) -> None:
        """Frees the place of a call that is not begun."""
        ready.lane.release(ready.tenant)
        self._settle_ready(ready)

    def _settle_ready(self, ready: ReadyStart) -> None:
        self._ready.discard(ready)
        if self._is_closing and not self._ready:
            self._none_ready.set()

    def begin(
        self,
        request: CallRequest,
        work: ToolWork,
        call_attempt: int,
        ready: ReadyStart | None = None,
        *,
        sent_before: bool = False,
        only_settles: bool = False,
    ) -> RunningCall:
        """Begins to run a call whose record names this runner.

        `ready`: the record says STARTED. `sent_before`: an earlier attempt may have had the effect. `only_settles`: the
        record says STARTED, the effect does not begin, and the end of that attempt is to be learned.
        """
        run = self.runs.add(request, call_attempt)
        run.marked = ready is not None or only_settles
        run.sent_before, run.only_settles = sent_before, only_settles
        task = asyncio.create_task(self._carry_out(run, work, ready), name=f"run {run.name}")
        if ready is not None:
            self._settle_ready(ready)
        self._tasks.add(task)
        for calls in self._counts_of(request):
            calls[request.claims.tenant] += 1
        self.runs.hold(task, partial(self._forget, request))
        return run

    def _counts_of(self, request: CallRequest) -> tuple[Counter[str], ...]:
        """Returns where a call of a tenant counts until its asyncio task ends."""
        return (self._of_tenant, self._own_of_tenant) if request.runs_at_caller else (self._of_tenant,)

    def _forget(self, request: CallRequest, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        for calls in self._counts_of(request):
            subtract_one(calls, request.claims.tenant)

    async def _carry_out(self, run: RunningCall, work: ToolWork, ready: ReadyStart | None) -> None:
        """Runs one attempt to its end, and sends the result to all listeners."""
        claims = run.request.claims
        log_fields = {"task": claims.task_id, "call": run.key.call_id, "epoch": describe_epoch(claims.epoch)}
        log_fields["claim"] = claims.claim_id
        ending: Outcome | Exception | None = None
        try:
            with log_context(**log_fields), within_trace(run.request.traceparent):
                ending = await self._perform(run, work, ready)
        except Superseded as superseded:
            ending = superseded
        except RunnerStopped:
            ending = _runner_stopped()
        except Exception as error:  # noqa: BLE001  the listeners get every error, a bug or a refusal
            if not isinstance(error, TenureError):
                _log.exception("a call failed unexpectedly in the tool service", extra=log_fields)
            ending = await self._conclude(run, work.tool, error)
        finally:
            self.runs.remove(run)
            run.settle(ending or _runner_stopped())

    async def _perform(self, run: RunningCall, work: ToolWork, ready: ReadyStart | None) -> Outcome:
        try:
            try:
                outcome = await (_lost_call() if run.only_settles else self._run_in_lane(run, work, ready))
            except ToolInDoubt as in_doubt:
                outcome = await self._settle(run, work, in_doubt)
        except ToolInDoubt as in_doubt:
            return await self._put_in_doubt(run, in_doubt.message)
        except Superseded:
            if isinstance(run.ending, Outcome):  # its caller ran it, and the outcome is in the record already
                return run.ending
            raise
        undone = undone_by(run.request, outcome)
        await self._record(OutcomeMark(run.key, run.call_attempt, pack_outcome(outcome), undone=undone))
        count_outcome(run.request, outcome)
        return outcome

    async def _settle(self, run: RunningCall, work: ToolWork, in_doubt: ToolInDoubt) -> Outcome:
        """Settles a call of unknown end. Raises ToolInDoubt if that brings nothing."""
        if run.request.runs_at_caller:
            raise in_doubt
        return await self._bounded(run, work.tool, await self._settler.settle(run, work, in_doubt))

    async def _run_in_lane(self, run: RunningCall, work: ToolWork, ready: ReadyStart | None) -> Outcome:
        """Runs the call in a place of its tool's lane, which a ready call has already."""
        lane, tenant = self._lanes[work.tool.lane], run.request.claims.tenant
        if ready is None:
            await failpoint("tools.after_accept")
            await lane.acquire(tenant)
        try:
            outcome = await self._run_once(run, work, None if ready is None else ready.may_begin)
            return await self._bounded(run, work.tool, outcome)
        finally:
            lane.release(tenant)

    async def _conclude(self, run: RunningCall, tool: Tool, fault: Exception) -> Outcome | Exception:
        """Ends a call that a fault of the tool service, or a refusal, broke off; returns its outcome or error.

        A STARTED mark that stayed would make other replicas wait for this call as long as this runner lives.
        """
        if not run.marked:
            return fault
        try:
            if run.effect is None and not run.only_settles:
                await self._withdraw(run)
            elif not (run.only_settles or leaves_doubt(tool.definition.effect_class, tool.definition.settlement)):
                fault_text = f"{_FAULT} {HARMLESS}"
                outcome = Outcome(
                    OutcomeStatus.FAILED, fault_text, detail=MAY_HAVE_HAPPENED, call_attempt=run.call_attempt
                )
                await self._record(OutcomeMark(run.key, run.call_attempt, pack_outcome(outcome)))
                return outcome
            else:
                return await self._put_in_doubt(run, _FAULT)
        except (Superseded, TenureError) as error:
            return error
        except Exception as error:  # noqa: BLE001  the listeners get this error, as they would get the first one
            _log.exception("the end of a failed call could not be recorded", extra={"call": run.key.call_id})
            return error
        return fault

    async def _put_in_doubt(self, run: RunningCall, message: str) -> Outcome:
        """Records the call as in doubt, under this attempt: the tool does not know the effect, and a person decides."""
        note = doubt_note(message)
        await self._record(OutcomeMark(run.key, run.call_attempt, b"", note))
        count_calls_in_doubt(1)
        return outcome_in_doubt(run.call_attempt, note)

    async def _record(self, finish: OutcomeMark) -> None:
        """Writes the third of the three writes, for as long as it takes, because the effect has happened.

        Raises Superseded when the call has a newer attempt.
        """
        await failpoint("tools.after_effect")
        if not await until_written(lambda: self._writers.finishes.submit(finish)):
            raise Superseded
        await failpoint("tools.after_outcome")

    async def _bounded(self, run: RunningCall, tool: Tool, outcome: Outcome) -> Outcome:
        """Truncates output that is too long for the model, and first stores all of it in the workspace."""
        limit_bytes, attempt = run.output_limit_bytes(tool), run.call_attempt
        is_short = len(outcome.content) <= limit_bytes // _LONGEST_CHARACTER_BYTES
        name = run.key.call_id if attempt == 1 else f"{run.key.call_id}-{attempt}"
        arguments = outcome.content, limit_bytes, run.request.claims.tenant, run.request.claims.task_id, name
        shown = (
            self._output_store.show(*arguments)
            if is_short
            else await asyncio.to_thread(self._output_store.show, *arguments)
        )
        if shown.content is outcome.content:
            return outcome
        return replace(
            outcome,
            content=shown.content,
            truncated=outcome.truncated or shown.truncated,
            output_path=shown.path,
        )

    async def _run_once(self, run: RunningCall, work: ToolWork, may_begin: MayBegin | None) -> Outcome:
        """Marks the call STARTED, unless it is, and runs the effect.

        Withdraws the start of an effect that did not begin in time, and starts again, at most _MAX_STARTS times.
        """
        for _ in range(_MAX_STARTS):
            if may_begin is None:
                if run.stop is not None:
                    raise Superseded
                may_begin = await self._mark(run)
            await failpoint("tools.before_effect")
            try:
                return await ToolEffect(run, work, may_begin).carry_out(self.runs.hold)
            except NeverBegan:
                run.effect = may_begin = None
                await self._withdraw(run)
                if run.stop is StopReason.DRAINED:
                    raise RunnerStopped from None
            except PutOff as put_off:
                await (self._release(run) if put_off.may_have_begun else self._withdraw(run))
                raise put_off.refusal from None
        raise Unavailable(
            f"this runner is too slow: the effect did not begin within {BEGINS_WITHIN_SECONDS:g} s of its start in "
            f"{_MAX_STARTS} attempts; retry",
            reason="RUNNER_SLOW",
        )

    async def _mark(self, run: RunningCall) -> MayBegin:
        """Writes the STARTED mark. The time in which the effect may begin counts from before the mark was sent."""
        may_begin = _MayBegin(self._liveness, self._liveness.runner_id)
        run.marked = True
        try:
            marked = await self._writers.starts.submit(StartMark(run.key, run.call_attempt, run.request))
        except TryLater:
            await self._withdraw(run)  # the mark may have been written although the write failed
            raise
        if not marked:
            if not may_begin.at_all():  # a write with a lost answer may have set the mark under the former life
                await self._withdraw(run)
            raise Superseded
        return may_begin

    async def _withdraw(self, run: RunningCall) -> None:
        """Withdraws the start, for as long as it takes: a mark that stays would put the call in doubt without a reason.

        Raises Superseded when the call must not be started again.
        """
        state = await until_written(lambda: withdraw_start(self._pool, StartMark(run.key, run.call_attempt)))
        run.marked = False
        if state is not CallState.ACCEPTED:
            raise Superseded
        run.call_attempt += 1

    async def release_first_start(self, key: CallKey) -> None:
        """Releases the start of a call that may run again and does not run here, for as long as it takes."""
        await until_written(lambda: release_start(self._pool, StartMark(key, 1)))

    async def _release(self, run: RunningCall) -> None:
        """Releases the start, for as long as it takes: a mark that stays would make other replicas wait for the runner.

        Raises Superseded when the call has a newer attempt or is in doubt.
        """
        start = StartMark(run.key, run.call_attempt)
        is_released = await until_written(lambda: release_start(self._pool, start))
        run.marked = False
        if not is_released:
            raise Superseded


async def _lost_call() -> Never:
    raise ToolInDoubt(_LOST_RUNNER)


def _runner_stopped() -> Unavailable:
    """Returns the error for requests that wait for a call without an outcome here: the record decides on the repeat."""
    return Unavailable(
        "the runner of this call stopped before the call had an outcome; send the request again",
        reason="RUNNER_STOPPED",
        retry_after_seconds=0.5,
    )


class _MayBegin:
    """The permission to begin an effect, from just before its start is written. See `effects.MayBegin`."""

    def __init__(self, liveness: Liveness, runner_id: UUID) -> None:
        self._liveness, self._runner_id = liveness, runner_id
        self._before = _now() + BEGINS_WITHIN_SECONDS

    def in_time(self) -> bool:
        return _now() < self._before and self.at_all()

    def at_all(self) -> bool:
        return self._liveness.trusts(self._runner_id)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _too_many(message: str) -> LimitReached:
    return LimitReached(f"{message}; retry later", reason="TOO_MANY_CALLS", retry_after_seconds=1.0)
