"""The first write of calls of tenants with rules: one transaction for a batch, apart from the calls of others.

The rules are judged before the transaction. It then holds the version of the rules, so that a change of them comes
before or after it, locks the fences, the calls and the counters, and decides each call. Some calls are left to a next
transaction: those that came after _DECIDING_SECONDS, and those that rules refused although another call of the batch
gave its share back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final
from uuid import UUID

from services.tools.calls.accept import AcceptBatch, begin_accepting, record
from services.tools.calls.accept_rules import MarkInDoubt, RunCall, RunnerIdentity, Verdict
from services.tools.calls.bounds import BoundsOfBatch, Judgements, judge_calls, lock_bounds
from services.tools.calls.call_log import log_refusals
from services.tools.calls.effect_keys import once_each
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.stops import StopView
from services.tools.rules.book import RuleBook, RuleSet, changed_since
from tenure.domain.errors import TenureError, Unavailable
from tenure.runtime.expressions import Expressions
from tenure.runtime.failpoints import failpoint
from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction

_TRIES: Final = 5
_DECIDING_SECONDS: Final = 0.3
"""How long a transaction decides calls, and so holds their locks, before it leaves the others to the next one."""
_LONGEST_DECIDING_SECONDS: Final = 2.0
"""How long it waits for the rules on its calls. A stop of any tenant waits BARRIER_SECONDS for open transactions."""
_COUNTED: Final = RunCall | MarkInDoubt
"""The new calls that counters keep. One in doubt asks a person whether it may repeat an effect, and then it runs."""
Decided = dict[CallKey, Verdict | TenureError]


class _Changed(Exception):  # noqa: N818  rolls the transaction back
    """The rules of these tenants have changed since they were judged."""

    def __init__(self, tenants: Sequence[str]) -> None:
        super().__init__(*tenants)
        self.tenants = tenants


class RuledAccepts:
    """Accepts calls by the rules of their tenants."""

    def __init__(self, pool: Pool, book: RuleBook, expressions: Expressions, stops: StopView) -> None:
        self.book = book
        self._pool, self._expressions, self._stops = pool, expressions, stops

    async def decide(
        self, batch: Sequence[CallRequest], runner_id: UUID, identity: Callable[[CallKey], RunnerIdentity]
    ) -> list[Verdict | TenureError]:
        """Decides calls, and records them. Raises Unavailable, also for slow rules and for rules that keep changing."""
        decided: Decided = {}
        for _ in range(_TRIES):
            left = _left(batch, decided)
            sets = await self.book.sets_of(request.claims.tenant for request in left)
            judgements = await judge_calls(self._expressions, sets, left)
            if any(judgement.open_findings for judgement in judgements.values()):
                await self._expressions.start()  # not under the locks
            try:
                while left := _left(batch, decided):
                    decided |= await self._write(left, sets, judgements, runner_id, identity)
                return [decided[request.key] for request in batch]
            except _Changed as changed:
                self.book.forget(changed.tenants)
        raise Unavailable("the rules on tool calls keep changing", reason="RULES_CHANGED", retry_after_seconds=0.1)

    async def _write(
        self,
        batch: Sequence[CallRequest],
        sets: Mapping[str, RuleSet],
        judgements: Judgements,
        runner_id: UUID,
        identity: Callable[[CallKey], RunnerIdentity],
    ) -> Decided:
        """Decides and records some of the calls, one at least."""

        async def work(postgres: Connection) -> tuple[AcceptBatch, Decided]:
            if changed := await changed_since(postgres, sets):
                raise _Changed(changed)
            accepting = await begin_accepting(postgres, batch, self._stops)
            bounds = await lock_bounds(postgres, judgements, [one.key for one in batch if accepting.is_new(one)])
            await failpoint("tools.bounds_locked")
            verdicts, refused = await _decide_some(batch, accepting, bounds, identity)
            some = batch[: len(verdicts)]
            await once_each(postgres, some, accepting.rows, verdicts)
            decided: Decided = {request.key: verdict for request, verdict in zip(some, verdicts, strict=True)}
            if bounds.keep(key for key, verdict in decided.items() if isinstance(verdict, _COUNTED)):
                decided = {key: verdict for key, verdict in decided.items() if key not in refused}
            recorded = [request for request in some if request.key in decided]
            accepting.plans = bounds.plans
            await record(postgres, accepting, recorded, list(decided.values()), runner_id)
            await bounds.write(postgres)
            return accepting, decided

        await failpoint("tools.before_ruled_accept")
        accepting, decided = await in_transaction(self._pool, work)
        await failpoint("tools.after_ruled_accept")
        log_refusals(accepting.refusals)
        return decided


async def _decide_some(
    batch: Sequence[CallRequest],
    accepting: AcceptBatch,
    bounds: BoundsOfBatch,
    identity: Callable[[CallKey], RunnerIdentity],
) -> tuple[list[Verdict | TenureError], set[CallKey]]:
    """Returns the verdicts on the first calls, one at least, and the calls that rules refused.

    Raises Unavailable (RULES_SLOW) when the rules on the first call take too long: nothing was recorded.
    """
    verdicts, refused = list[Verdict | TenureError](), set[CallKey]()
    began_at = monotonic()
    try:
        async with asyncio.timeout(_LONGEST_DECIDING_SECONDS):
            for request in batch:
                note_progress()
                if verdicts and monotonic() > began_at + _DECIDING_SECONDS:
                    break
                by_rules = await bounds.verdict(request) if accepting.is_new(request) else None
                verdicts.append(accepting.decide(request, identity(request.key), by_rules))
                if by_rules is not None and verdicts[-1] is by_rules:
                    refused.add(request.key)
    except TimeoutError:
        if not verdicts:
            message = f"the tenant's rules on this call were not evaluated within {_LONGEST_DECIDING_SECONDS:g} s"
            raise Unavailable(
                f"{message}: send the request again", reason="RULES_SLOW", retry_after_seconds=0.5
            ) from None
    return verdicts, refused


def _left(batch: Sequence[CallRequest], decided: Decided) -> list[CallRequest]:
    return [request for request in batch if request.key not in decided]
