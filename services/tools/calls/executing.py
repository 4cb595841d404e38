"""Execute: a call is asked for, and whatever happens there is one run of it, one record, and one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from services.tools.calls.accept import Accepting, begin_accepting
from services.tools.calls.accept_rules import Answer, Conclude, Doubt, Here, Join, Run, Verdict
from services.tools.calls.following import Follower
from services.tools.calls.measures import count_doubts
from services.tools.calls.records import Asked, CallKey
from services.tools.calls.refusals import tell_refusals
from services.tools.calls.running import Runner
from services.tools.calls.runs import Displaced, Event, Started
from services.tools.calls.runs import Run as RunningCall
from services.tools.runners.liveness import Liveness
from services.tools.tool import Work
from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.in_doubt import outcome_in_doubt
from tenure.domain.tools import Outcome
from tenure.runtime.batching import Batcher
from tenure.runtime.failpoint import failpoint
from tenure.runtime.kept_connection import KeptConnection

_MOST_TURNS: Final = 20
_OVERHEAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A call and what to run it with; nothing when its outcome is clear."""

    asked: Asked
    work: Work | None


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

    def __init__(self, kept: KeptConnection, liveness: Liveness, runner: Runner, follower: Follower) -> None:
        self._kept, self._liveness, self._runner, self._follower = kept, liveness, runner, follower
        self.accepts: Batcher[Request, _Taken] = Batcher(
            "accepts",
            self._accept,
            key=lambda request: request.asked.key,
            size=lambda request: request.asked.size_bytes + _OVERHEAD_BYTES,
        )

    async def execute(self, request: Request) -> AsyncGenerator[Event, None]:
        """What happens to the call, its outcome last. Closing the iterator stops nothing.

        Raises StaleEpoch, AlreadyExists (CALL_ID_REUSED), LimitReached and Unavailable: then it may be asked again.
        """
        told = False
        for _ in range(_MOST_TURNS):
            self._runner.check_room()
            taken = await self.accepts.submit(request)
            if isinstance(taken, Outcome):
                yield taken
                return
            with suppress(Displaced):  # then the record knows more by now
                async with aclosing(self._events(request.asked.key, taken)) as events:
                    async for event in events:
                        if isinstance(event, Started):
                            if told:
                                continue
                            told = True
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
        raise Displaced

    async def _accept(self, batch: Sequence[Request]) -> list[_Taken | TenureError]:
        """One transaction. What it hands to this runner is begun once it is durable, whether its caller is there or
        not.
        """
        runner_id = self._liveness.runner_id
        await failpoint("tools.before_accept")
        accepting, verdicts = await self._decide(batch, runner_id)
        tell_refusals(accepting.refusals)
        return [self._take(request, verdict) for request, verdict in zip(batch, verdicts, strict=True)]

    async def _decide(self, batch: Sequence[Request], runner_id: UUID) -> tuple[Accepting, list[Verdict | TenureError]]:
        async with self._kept.transaction() as postgres:
            accepting = await begin_accepting(postgres, [request.asked for request in batch])
            verdicts = [
                accepting.decide(request.asked, Here(runner_id, self._runner.runs.attempt_of(request.asked.key)))
                for request in batch
            ]
            await accepting.write(postgres, runner_id)
        return accepting, verdicts

    def _take(self, request: Request, verdict: Verdict | TenureError) -> _Taken | TenureError:
        match verdict:
            case Run(call_attempt):
                assert request.work is not None, "a call whose outcome is clear is not run"
                return _Running(self._runner.begin(request.asked, request.work, call_attempt), joined=False)
            case Join(call_attempt):
                run = self._runner.runs.find(request.asked.key)
                if run is None or run.call_attempt != call_attempt:
                    return _Elsewhere(call_attempt)
                run.authorise(request.asked.fence.epoch)
                return _Running(run, joined=True)
            case Doubt(call_attempt):
                count_doubts(1)
                return outcome_in_doubt(call_attempt)
            case Answer(outcome) | Conclude(outcome):
                return outcome
            case _:
                return verdict
