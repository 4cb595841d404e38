"""Execute: a call is asked for, and whatever happens there is one run of it, one record, and one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from services.tools.calls.accept import AcceptBatch, begin_accepting
from services.tools.calls.accept_rules import (
    AnswerFromRecord,
    ConcludeCall,
    JoinCall,
    MarkInDoubt,
    RunCall,
    RunnerIdentity,
    Verdict,
)
from services.tools.calls.audit_log import log_refusals
from services.tools.calls.metrics import count_calls_in_doubt
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.running import Runner
from services.tools.calls.runs import Event, RunningCall, Started, Superseded
from services.tools.runners.liveness import Liveness
from services.tools.statements import QUERIES
from services.tools.tool import ToolWork
from tenure.domain.errors import LimitReached, TenureError, Unavailable
from tenure.domain.in_doubt import outcome_in_doubt
from tenure.domain.tools import Outcome
from tenure.runtime.batching import Batcher
from tenure.runtime.dedicated_connection import DedicatedConnection
from tenure.runtime.failpoints import failpoint
from tenure.runtime.postgres import Pool, connection
from tenure.runtime.process import rest, resting

# Waiting for calls that run in other replicas: one look at the records for all of them, again and again.

_MOST_WAITING: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    key: CallKey
    call_attempt: int
    moved: asyncio.Future[None]


class RemoteCallFollower:
    """Polls only while somebody waits."""

    def __init__(self, pool: Pool, poll_seconds: float = 0.1) -> None:
        self._pool, self._poll_seconds = pool, poll_seconds
        self._waiting: set[_Waiting] = set()
        self._arrived = asyncio.Event()

    async def moved(self, key: CallKey, call_attempt: int) -> None:
        """Returns when this attempt no longer runs elsewhere: it ended, was handed on, or its runner died.

        Raises LimitReached when too many wait.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise LimitReached("too many wait for calls that run elsewhere", retry_after_seconds=1.0)
        waiting = _Waiting(key, call_attempt, asyncio.get_running_loop().create_future())
        self._waiting.add(waiting)
        self._arrived.set()
        try:
            await waiting.moved
        finally:
            self._waiting.discard(waiting)

    async def poll(self) -> None:
        """The duty."""
        while True:
            if not self._waiting:
                self._arrived.clear()
                with resting():
                    await self._arrived.wait()
            await self._look(list(self._waiting))
            await rest(self._poll_seconds)

    async def _look(self, waiting: list[_Waiting]) -> None:
        parameters = {
            "ordinals": list(range(len(waiting))),
            "task_ids": [one.key.task_id for one in waiting],
            "call_ids": [one.key.call_id for one in waiting],
            "attempts": [one.call_attempt for one in waiting],
        }
        async with connection(self._pool) as postgres:
            rows = await (await postgres.execute(QUERIES.calls_to_ask_about, parameters)).fetchall()
        for (ordinal,) in rows:
            if not waiting[ordinal].moved.done():
                waiting[ordinal].moved.set_result(None)


_MOST_TURNS: Final = 20
_OVERHEAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class ExecuteJob:
    """A call and what to run it with; nothing when its outcome is clear."""

    request: CallRequest
    work: ToolWork | None


@dataclass(frozen=True, slots=True)
class _Running:
    """It runs here."""

    run: RunningCall
    joined: bool


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """It runs in another replica."""

    call_attempt: int


_Taken = Outcome | _Running | _Elsewhere


class Executor:
    """Takes calls in, a batch at a time; the loop `accepts.run` is a duty."""

    def __init__(
        self, kept: DedicatedConnection, liveness: Liveness, runner: Runner, follower: RemoteCallFollower
    ) -> None:
        self._kept, self._liveness, self._runner, self._follower = kept, liveness, runner, follower
        self.accepts: Batcher[ExecuteJob, _Taken] = Batcher(
            "accepts",
            self._accept,
            key=lambda request: request.request.key,
            size=lambda request: request.request.size_bytes + _OVERHEAD_BYTES,
        )

    async def execute(self, request: ExecuteJob) -> AsyncGenerator[Event, None]:
        """What happens to the call, its outcome last. Closing the iterator stops nothing.

        Raises StaleEpoch, AlreadyExists (CALL_ID_REUSED), LimitReached and Unavailable: then it may be asked again.
        """
        was_sent = False
        for _ in range(_MOST_TURNS):
            self._runner.check_room()
            taken = await self.accepts.submit(request)
            if isinstance(taken, Outcome):
                yield taken
                return
            with suppress(Superseded):  # then the record knows more by now
                async with aclosing(self._events(request.request.key, taken)) as events:
                    async for event in events:
                        if isinstance(event, Started):
                            if was_sent:
                                continue
                            was_sent = True
                        yield event
                return
        raise Unavailable("this call is handed from runner to runner", retry_after_seconds=1.0)

    async def _events(self, key: CallKey, taken: _Running | _Elsewhere) -> AsyncGenerator[Event, None]:
        if isinstance(taken, _Running):
            async with aclosing(taken.run.follow(joined=taken.joined)) as events:
                async for event in events:
                    yield event
            return
        yield Started(taken.call_attempt, joined=True)
        await self._follower.moved(key, taken.call_attempt)
        raise Superseded

    async def _accept(self, batch: Sequence[ExecuteJob]) -> list[_Taken | TenureError]:
        """One transaction. What it hands to this runner is begun once it is durable, whether its caller is there or
        not.
        """
        runner_id = self._liveness.runner_id
        await failpoint("tools.before_accept")
        accepting, verdicts = await self._decide(batch, runner_id)
        log_refusals(accepting.refusals)
        return [self._take(request, verdict) for request, verdict in zip(batch, verdicts, strict=True)]

    async def _decide(
        self, batch: Sequence[ExecuteJob], runner_id: UUID
    ) -> tuple[AcceptBatch, list[Verdict | TenureError]]:
        async with self._kept.transaction() as postgres:
            accepting = await begin_accepting(postgres, [request.request for request in batch])
            verdicts = [
                accepting.decide(
                    request.request, RunnerIdentity(runner_id, self._runner.runs.attempt_of(request.request.key))
                )
                for request in batch
            ]
            await accepting.write(postgres, runner_id)
        return accepting, verdicts

    def _take(self, request: ExecuteJob, verdict: Verdict | TenureError) -> _Taken | TenureError:
        match verdict:
            case RunCall(call_attempt):
                assert request.work is not None, "a call whose outcome is clear is not run"
                return _Running(self._runner.begin(request.request, request.work, call_attempt), joined=False)
            case JoinCall(call_attempt):
                run = self._runner.runs.find(request.request.key)
                if run is None or run.call_attempt != call_attempt:
                    return _Elsewhere(call_attempt)
                run.authorise(request.request.fence.epoch)
                return _Running(run, joined=True)
            case MarkInDoubt(call_attempt):
                count_calls_in_doubt(1)
                return outcome_in_doubt(call_attempt)
            case AnswerFromRecord(outcome) | ConcludeCall(outcome):
                return outcome
            case _:
                return verdict
