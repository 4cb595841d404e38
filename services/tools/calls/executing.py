"""Execute: accepts a call and follows it to its outcome. However often a call is requested, it has one record.

The run is in this process, or in another replica; then this one polls the record until that attempt ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Final
from uuid import UUID

from services.tools.calls.accept import begin_accepting, conclude
from services.tools.calls.accept_new import accept_new_calls
from services.tools.calls.accept_ruled import RuledAccepts
from services.tools.calls.accept_rules import (
    AnswerFromRecord,
    AskFirst,
    ConcludeCall,
    JoinCall,
    MarkInDoubt,
    RunCall,
    SettleCall,
    Verdict,
    WaitForEffect,
)
from services.tools.calls.call_log import log_refusals
from services.tools.calls.following import (
    Accepted,
    CallFollower,
    EventQueue,
    OtherCallRuns,
    RunningElsewhere,
    RunningHere,
)
from services.tools.calls.metrics import count_calls_in_doubt, count_outcome
from services.tools.calls.records import CallKey, CallRequest, doubt_note
from services.tools.calls.running import ReadyStart, Runner
from services.tools.calls.runs import Event, EventReader, RunningCall
from services.tools.calls.stops import StopView
from services.tools.calls.tenant_batches import StartDuty, TenantBatchers
from services.tools.runners.liveness import Liveness
from services.tools.statements import QUERIES
from services.tools.tool import ToolWork
from tenure.domain.errors import LimitReached, TenureError, TryLater, Unavailable
from tenure.domain.in_doubt import outcome_in_doubt
from tenure.domain.states import Reason
from tenure.domain.tools import Outcome
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import rest, resting
from tenure.runtime.rpc.status import DRAINING
from tenure.runtime.store.batching import AGAIN, Answer, Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Pool, pool_connection

# The poll of calls that run in other replicas: one query for all of them.

_MAX_WAITING: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    key: CallKey
    call_attempt: int
    changed: asyncio.Future[None]
    on_settling: Callable[[], None]


class RemoteCallFollower:
    """Polls the records of calls that other replicas run, while a request waits for one of them."""

    def __init__(self, pool: Pool, poll_seconds: float = 0.1) -> None:
        self._pool, self._poll_seconds = pool, poll_seconds
        self._waiting: set[_Waiting] = set()
        self._arrived = asyncio.Event()

    async def wait_for_change(
        self, key: CallKey, call_attempt: int, on_settling: Callable[[], None] = lambda: None
    ) -> None:
        """Returns when this attempt no longer runs elsewhere: it ended, was superseded, or its runner died.

        With the attempt `ENDED` it returns when the call has ended, whatever its attempts were. `on_settling` is called
        at each look that finds the call being settled. Raises LimitReached when too many requests wait.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise LimitReached(
                f"{_MAX_WAITING} requests already wait for calls that other replicas run; retry later",
                retry_after_seconds=1.0,
            )
        waiting = _Waiting(key, call_attempt, asyncio.get_running_loop().create_future(), on_settling)
        self._waiting.add(waiting)
        self._arrived.set()
        try:
            await waiting.changed
        finally:
            self._waiting.discard(waiting)

    async def poll(self) -> None:
        """Polls, as a duty."""
        while True:
            if not self._waiting:
                self._arrived.clear()
                with resting():
                    await self._arrived.wait()
            await self._poll_once(list(self._waiting))
            await rest(self._poll_seconds)

    async def _poll_once(self, waiting: list[_Waiting]) -> None:
        parameters = {
            "ordinals": list(range(len(waiting))),
            "task_ids": [call.key.task_id for call in waiting],
            "call_ids": [call.key.call_id for call in waiting],
            "attempts": [call.call_attempt for call in waiting],
        }
        async with pool_connection(self._pool) as postgres:
            rows = await (await postgres.execute(QUERIES.calls_not_running, parameters)).fetchall()
        for ordinal, is_settled in rows:
            call = waiting[ordinal]
            if not call.changed.done():
                call.on_settling() if is_settled else call.changed.set_result(None)


_OVERHEAD_BYTES: Final = 256
_MAX_RULED: Final = 16
"""Calls of a batch whose rules are evaluated. Each may take a moment of processor time."""


@dataclass(frozen=True, slots=True, eq=False)
class ExecuteJob:
    """A call with its tool and arguments; `work` is None when the outcome is known without running the tool."""

    request: CallRequest
    work: ToolWork | None


_Decided = tuple[Verdict | TenureError, bool]


class Executor:
    """Accepts calls in batches and follows them. `accepts.run` is a duty.

    `start_ruled`: starts the duty that accepts the calls of a tenant with rules.
    """

    def __init__(
        self,
        kept: DedicatedConnection,
        liveness: Liveness,
        runner: Runner,
        follower: RemoteCallFollower,
        stops: StopView,
        ruled: RuledAccepts,
        start_ruled: StartDuty,
    ) -> None:
        self._kept, self._liveness, self._runner, self._follower = kept, liveness, runner, follower
        self._stops, self._ruled, self._book = stops, ruled, ruled.book
        self._perhaps_started: set[CallKey] = set()
        """The calls whose first write failed: it may have recorded their start, and this process did not begin them."""
        self._settling: set[asyncio.Task[None]] = set()
        self.accepts: Batcher[ExecuteJob, Accepted] = Batcher(
            "accepts",
            self._accept,
            key=lambda job: job.request.key,
            size=lambda job: job.request.size_bytes + _OVERHEAD_BYTES,
        )
        self._ruled_accepts = TenantBatchers(self._ruled_batcher, start_ruled)

    def follow(self, job: ExecuteJob, reader: EventReader) -> CallFollower:
        """Has the call accepted and gives its events to the reader, the outcome last. To leave does not stop the call.

        The reader may get StaleEpoch, AlreadyExists (CALL_ID_REUSED), LimitReached, and Unavailable: then a repeat is
        safe.
        """

        def enqueue(answer: Answer[Accepted], waits_for_effect: bool) -> None:
            self._runner.check_room(job.request)
            waiting = job
            if not waits_for_effect:
                waiting = ExecuteJob(replace(job.request, waits_for_effect=False), job.work)
            self._accepts_of(job).enqueue(waiting, partial(self._pass_on, waiting, answer))

        follower = CallFollower(job.request.key, reader, enqueue, self._follower.wait_for_change)
        follower.begin()
        return follower

    def _ruled_batcher(self) -> Batcher[ExecuteJob, Accepted]:
        return Batcher(
            "ruled accepts",
            self._accept_ruled,
            key=lambda job: job.request.key,
            size=lambda job: job.request.size_bytes + _OVERHEAD_BYTES,
            limits=BatchLimits(max_items=_MAX_RULED),
        )

    def _accepts_of(self, job: ExecuteJob) -> Batcher[ExecuteJob, Accepted]:
        tenant = job.request.claims.tenant
        is_ruled = tenant in self._book.tenants or job.request.needs_approval
        return self._ruled_accepts.of(tenant) if is_ruled else self.accepts

    async def execute(self, job: ExecuteJob) -> AsyncGenerator[Event, None]:
        """Yields the call's events, its outcome last. Raises the errors that `follow` reports."""
        queue = EventQueue()
        follower = self.follow(job, queue)
        try:
            async with aclosing(queue.events()) as events:
                async for event in events:
                    yield event
        finally:
            follower.leave()

    async def _accept(self, batch: Sequence[ExecuteJob]) -> list[Accepted | TenureError]:
        """Accepts a batch: its new calls in one statement, the others in a transaction.

        The statement also marks those STARTED whose lane has a free place. Once a write is durable, this runner begins
        the calls that it got, even if their callers went away.
        """
        runner_id, book = self._liveness.runner_id, self._book
        await failpoint("tools.before_accept")
        if monotonic() >= book.fresh_until:
            await book.refresh()
        if book.tenants and not book.tenants.isdisjoint(job.request.claims.tenant for job in batch):
            return await self._accept_without_rules(batch)
        ready = [self._ready_start(job, runner_id) for job in batch]
        try:
            verdicts = await self._write(batch, [start is not None for start in ready], runner_id)
        except BaseException:
            for job, start in zip(batch, ready, strict=True):
                if start is not None:
                    self._perhaps_started.add(job.request.key)
                    self._runner.give_back(start)
            raise
        if self._perhaps_started:
            self._settled(batch, [verdict for verdict, _ in verdicts])
        return [self._answer_to(*each) for each in zip(batch, verdicts, ready, strict=True)]

    async def _accept_without_rules(self, batch: Sequence[ExecuteJob]) -> list[Accepted | TenureError]:
        """Accepts the calls of a batch whose tenants have no rules yet. The others come again, the other way."""
        ruled = self._book.tenants
        left = [job for job in batch if job.request.claims.tenant not in ruled]
        accepted = iter(await self._accept(left) if left else ())
        return [_rules_came() if job.request.claims.tenant in ruled else next(accepted) for job in batch]

    async def _accept_ruled(self, batch: Sequence[ExecuteJob]) -> list[Accepted | TenureError]:
        """Accepts a batch of calls of a tenant with rules."""
        runner_id = self._liveness.runner_id
        verdicts = await self._ruled.decide(
            [job.request for job in batch], runner_id, partial(self._runner.runs.identity, runner_id)
        )
        self._settled(batch, verdicts)
        return [self._answer_to(job, (verdict, False), None) for job, verdict in zip(batch, verdicts, strict=True)]

    def _settled(self, batch: Sequence[ExecuteJob], verdicts: Sequence[Verdict | TenureError]) -> None:
        """Notes that the records of decided calls are known.

        A refused call, such as one of an older claim, may still have the STARTED mark of a first write: see _pass_on.
        """
        self._perhaps_started.difference_update(
            job.request.key
            for job, verdict in zip(batch, verdicts, strict=True)
            if not isinstance(verdict, TenureError)
        )

    def _ready_start(self, job: ExecuteJob, runner_id: UUID) -> ReadyStart | None:
        """Returns the place of a call that its first write may start; None: it is ACCEPTED first.

        An UNSAFE call is: after a lost answer its start would be in doubt, and a call that is only ACCEPTED never is.
        """
        request = job.request
        if job.work is None or not request.effect_class.may_run_again or request.key in self._perhaps_started:
            return None
        if request.has_recorded_key:
            return None
        return self._runner.ready_start(job.work, request.claims.tenant, runner_id)

    async def _write(self, batch: Sequence[ExecuteJob], starts: Sequence[bool], runner_id: UUID) -> list[_Decided]:
        """Returns each verdict, and whether the call is STARTED."""
        async with self._kept.statements() as postgres:
            new = await accept_new_calls(postgres, [job.request for job in batch], starts, runner_id, self._stops)
        await failpoint("tools.after_first_write")
        left = [job for job, verdict in zip(batch, new, strict=True) if verdict is None]
        decided = iter(await self._decide(left, runner_id) if left else ())
        return [
            (next(decided), False) if verdict is None else (verdict, is_started)
            for verdict, is_started in zip(new, starts, strict=True)
        ]

    async def _decide(self, batch: Sequence[ExecuteJob], runner_id: UUID) -> list[Verdict | TenureError]:
        """Decides calls under the locks of their fences and records, and writes what the rules decided."""
        async with self._kept.transaction() as postgres:
            accepting = await begin_accepting(postgres, [job.request for job in batch], self._stops)
            requests = [job.request for job in batch]
            verdicts = [
                accepting.decide(request, self._runner.runs.identity(runner_id, request.key)) for request in requests
            ]
            await conclude(postgres, accepting, requests, verdicts, runner_id)
        log_refusals(accepting.refusals)
        return verdicts

    def _pass_on(self, job: ExecuteJob, answer: Answer[Accepted], result: Accepted | Exception) -> None:
        """Answers a call. Settles the record of one that was given up or refused, and may be STARTED all the same."""
        if job.request.key in self._perhaps_started:
            is_draining = isinstance(result, TenureError) and result.reason == DRAINING
            if not is_draining:
                task = asyncio.create_task(self._settle(job))
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)
        answer(result)

    async def _settle(self, job: ExecuteJob) -> None:
        """Accepts a call again, for as long as it takes: a STARTED mark that stays would make other replicas wait for
        this runner.
        """
        key, failures = job.request.key, 0
        while key in self._perhaps_started:
            try:
                await self._accepts_of(job).submit(job)
            except Exception as error:  # noqa: BLE001
                if isinstance(error, TryLater) and error.reason != Reason.STOPPED:
                    failures += 1
                    await asyncio.sleep(AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds))
                    continue
                # Something refuses the call, such as a closed fence or a stop: it does not run here.
                self._perhaps_started.discard(key)
                if self._runner.runs.find(key) is None:
                    await self._runner.release_first_start(key)

    def _answer_to(self, job: ExecuteJob, decided: _Decided, ready: ReadyStart | None) -> Accepted | TenureError:
        verdict, is_started = decided
        if ready is not None and not is_started:
            self._runner.give_back(ready)
            ready = None
        match verdict:
            case RunCall() | SettleCall():
                return RunningHere(self._begin(job, verdict, ready), joined=False)
            case WaitForEffect(holder):
                return OtherCallRuns(holder, job.request.patience_seconds)
            case JoinCall(call_attempt):
                joined = self._runner.runs.find(job.request.key)
                if joined is None or joined.call_attempt != call_attempt:
                    return RunningElsewhere(call_attempt)
                joined.authorise(job.request.fence.epoch)
                return RunningHere(joined, joined=True)
            case MarkInDoubt(call_attempt, note):
                count_calls_in_doubt(1)
                return self._end_own_run(job.request, outcome_in_doubt(call_attempt, doubt_note(note)))
            case ConcludeCall(outcome):
                if job.request.own_outcome is not None:
                    count_outcome(job.request, outcome)
                return self._end_own_run(job.request, outcome)
            case AnswerFromRecord(outcome) | AskFirst(outcome):
                return outcome
            case _:
                return verdict

    def _begin(self, job: ExecuteJob, verdict: RunCall | SettleCall, ready: ReadyStart | None) -> RunningCall:
        assert job.work is not None, "a call whose outcome is known neither runs nor is settled"
        key = verdict.idempotency_key
        request = replace(job.request, idempotency_key=key) if key else job.request
        if isinstance(verdict, SettleCall):
            return self._runner.begin(request, job.work, verdict.call_attempt, sent_before=True, only_settles=True)
        return self._runner.begin(request, job.work, verdict.call_attempt, ready, sent_before=verdict.sent_before)

    def _end_own_run(self, request: CallRequest, outcome: Outcome) -> Outcome:
        """Returns the recorded outcome, and ends the run of this process that waits for the caller's run."""
        if request.runs_at_caller:
            self._runner.runs.conclude(request, outcome)
        return outcome


def _rules_came() -> Unavailable:
    """Returns the error for a call of a tenant that has just got its first rule: the repeat is decided by it."""
    message = "the tenant has rules on tool calls since a moment ago; send the request again"
    return Unavailable(message, reason="RULES_CHANGED", retry_after_seconds=0.05)
