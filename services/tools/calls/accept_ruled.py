"""The first write of calls of tenants with rules: one transaction for a batch, apart from the calls of others.

The rules are judged before the transaction. It then holds the version of the rules, so that a change of them comes
before or after it, locks the fences, the calls and the counters, and decides each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from services.tools.calls.accept import AcceptBatch, begin_accepting, conclude
from services.tools.calls.accept_rules import RunCall, RunnerIdentity, Verdict
from services.tools.calls.bounds import Judgements, judge_calls, lock_bounds
from services.tools.calls.call_log import log_refusals
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.stops import StopView
from services.tools.rules.book import RuleBook, RuleSet, changed_since
from tenure.domain.errors import TenureError, Unavailable
from tenure.runtime.expressions import Expressions
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import Connection, Pool, in_transaction

_TRIES: Final = 5


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
        """Decides calls, and records them. Raises Unavailable, also when the rules change again and again."""
        for _ in range(_TRIES):
            sets = await self.book.sets_of(request.claims.tenant for request in batch)
            judgements = await judge_calls(self._expressions, sets, batch)
            try:
                return await self._write(batch, sets, judgements, runner_id, identity)
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
    ) -> list[Verdict | TenureError]:
        async def work(postgres: Connection) -> tuple[AcceptBatch, list[Verdict | TenureError]]:
            if changed := await changed_since(postgres, sets):
                raise _Changed(changed)
            accepting = await begin_accepting(postgres, batch, self._stops)
            bounds = await lock_bounds(postgres, judgements, [one.key for one in batch if accepting.is_new(one)])
            verdicts = list[Verdict | TenureError]()
            for request in batch:
                by_rules = await bounds.verdict(request) if accepting.is_new(request) else None
                stop = self._stops.of(request)
                verdicts.append(accepting.decide(request, identity(request.key), stop, by_rules))
            await conclude(postgres, accepting, batch, verdicts, runner_id)
            bounds.keep(
                request.key for request, verdict in zip(batch, verdicts, strict=True) if isinstance(verdict, RunCall)
            )
            await bounds.write(postgres)
            return accepting, verdicts

        await failpoint("tools.before_ruled_accept")
        accepting, verdicts = await in_transaction(self._pool, work)
        await failpoint("tools.after_ruled_accept")
        log_refusals(accepting.refusals)
        return verdicts
