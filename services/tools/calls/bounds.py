"""The rules of tenants in the first write of a call: judged before the locks, counted under the locks of the counters.

A counter changes in the transaction that records the call, and only there. A repeat of a call has a record, so it is
neither decided nor counted again. A trigger (0004_rules.sql) marks a call that never ran, and the next transaction that
locks its counter subtracts it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from services.tools.calls.accept_rules import AnswerFromRecord, AskFirst, RunCall, Verdict, decide_unknown
from services.tools.calls.records import CallKey, CallRequest
from services.tools.rules.evaluating import Judgement, judge, judge_plans
from services.tools.statements import RULES
from tenure.domain.call_plans import counter_of, left_of_plan, plan_id_of
from tenure.domain.tool_rules import Counter, Counts, RuledCall, Use, read_arguments
from tenure.runtime.process import note_progress
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import tool_pb2, tool_service_pb2
from tenure.wire.call_plans import plan_to_domain
from tenure.wire.common import timestamp

if TYPE_CHECKING:
    from services.tools.rules.book import RuleSet
    from tenure.runtime.expressions import Expressions

ASKED: Final = "The task asks a person about each call of {tool}."
Judgements = Mapping[CallKey, Judgement]


async def judge_calls(
    expressions: Expressions, sets: Mapping[str, RuleSet], batch: Sequence[CallRequest]
) -> dict[CallKey, Judgement]:
    """Judges the calls of a batch that would run if they had no record. Raises Unavailable.

    The window of a bound is that of this process's clock: a call at the turn of two windows counts in one of them.
    """
    judgements, now = dict[CallKey, Judgement](), time.time()
    for request in batch:
        note_progress()
        claims = request.claims
        if isinstance(decide_unknown(request), RunCall):
            rules = sets[claims.tenant].that_fit(request.tool, claims.agent)
            called = partial(_called, request)
            judgement = await judge(expressions, rules, called, now)
            if request.needs_approval:
                judgement = replace(judgement, ask_reason=ASKED.format(tool=request.tool))
            if claims.plans and judgement.may_ask and not request.is_approved:
                judgement = replace(judgement, plans=await judge_plans(expressions, claims.plans, called, now))
            judgements[request.key] = judgement
    return judgements


def _called(request: CallRequest) -> RuledCall:
    claims, args = request.claims, read_arguments(request.arguments_json, request.form)
    return RuledCall(claims.tenant, str(request.key.task_id), request.tool, args, claims.agent, dict(claims.labels))


class BoundsOfBatch:
    """The locked counters of a batch, and what its calls take. `plans`: the ids of the plans that permit calls."""

    def __init__(self, judgements: Judgements, counts: Counts[CallKey], ids: Mapping[Counter, int]) -> None:
        self._judgements, self._counts, self._ids = judgements, counts, ids
        self.plans: dict[CallKey, str] = {}

    async def verdict(self, request: CallRequest) -> Verdict | None:
        """Returns the rules' verdict on a call without a record. None: they allow it, and it takes its shares."""
        judgement = self._judgements.get(request.key)
        if judgement is None:
            return None
        ruling = await judgement.decide(self._counts, is_approved=request.is_approved)
        if ruling.outcome is None:
            self._counts.take(request.key, ruling.shares)
            if ruling.permitted_by:
                self.plans[request.key] = plan_id_of(ruling.permitted_by)
            return None
        return AskFirst(ruling.outcome) if ruling.asks else AnswerFromRecord(ruling.outcome)

    def keep(self, counted: Iterable[CallKey]) -> bool:
        """Gives back the shares of calls that the rules allow and that do not run, such as repeats of an effect.

        Returns whether there are any.
        """
        return self._counts.keep(frozenset(counted))

    async def write(self, postgres: Connection) -> None:
        """Writes the counters, and which calls they have counted."""
        if not self._ids:
            return
        await _write(postgres, {one: self._counts.use(counter) for counter, one in self._ids.items()})
        if taken := self._counts.taken:
            await postgres.execute(
                RULES.count_calls,
                {
                    "task_ids": [key.task_id for key, _ in taken],
                    "call_ids": [key.call_id for key, _ in taken],
                    "counter_ids": [self._ids[share.counter] for _, share in taken],
                    "amounts": [share.amount for _, share in taken],
                },
            )


async def lock_bounds(postgres: Connection, judgements: Judgements, new: Iterable[CallKey]) -> BoundsOfBatch:
    """Locks the counters that new calls may take from, in one order. The fences and the calls must be locked before."""
    keys = set(new)
    wanted = {each for key, judgement in judgements.items() if key in keys for each in judgement.counters}
    if not wanted:
        return BoundsOfBatch(judgements, Counts({}), {})
    rows = await _lock(postgres, wanted)
    ids = {Counter(*counter): counter_id for counter_id, *counter, _, _, _ in rows}
    used = await _without_returned(postgres, {row[0]: Use(*row[-3:]) for row in rows})
    return BoundsOfBatch(judgements, Counts({counter: used[one] for counter, one in ids.items()}), ids)


async def _lock(postgres: Connection, counters: Collection[Counter]) -> Sequence[tuple[Any, ...]]:
    """Locks counters in one order. Returns a row of each: its id, its parts, and what it has counted."""
    columns = {
        "tenants": [counter.tenant for counter in counters],
        "rules": [counter.rule for counter in counters],
        "subjects": [counter.subject for counter in counters],
        "windows": [counter.window_seconds for counter in counters],
        "begins": [counter.begins_at for counter in counters],
    }
    return await (await postgres.execute(RULES.lock_counters, columns)).fetchall()


async def _without_returned(postgres: Connection, used: dict[int, Use]) -> dict[int, Use]:
    """Returns what locked counters have counted, by their ids, without the calls that never ran."""
    returned = await postgres.execute(RULES.take_returned, {"counter_ids": list(used)})
    for counter_id, amount in await returned.fetchall():
        used[counter_id] = used[counter_id].minus(amount)
    return used


async def _write(postgres: Connection, used: Mapping[int, Use]) -> None:
    columns = {
        "counter_ids": list(used),
        "calls": [use.calls for use in used.values()],
        "totals": [use.total for use in used.values()],
    }
    await postgres.execute(RULES.write_counters, columns)


async def count_planned_calls(
    pool: Pool, tenant: str, request: tool_service_pb2.CountPlannedCallsRequest
) -> tool_service_pb2.CountPlannedCallsResponse:
    """Returns what plans have counted, and ends them on request: no transaction that commits later counts by them."""
    counters = {plan.plan_id: counter_of(plan_to_domain(plan), tenant) for plan in request.plans}

    async def work(postgres: Connection) -> Sequence[tuple[Any, ...]]:
        if request.end:
            rows = await _lock(postgres, counters.values())
            await postgres.execute(RULES.end_counters, {"counter_ids": [counter_id for counter_id, *_ in rows]})
        columns = {"tenant": tenant, "rules": [counter.rule for counter in counters.values()]}
        return await (await postgres.execute(RULES.read_counters, columns)).fetchall()

    rows = await in_transaction(pool, work)
    uses = {plan_id_of(rule): (Use(calls, total, at is not None), at) for rule, calls, total, at in rows}
    plans = [_counted(plan, *uses.get(plan.plan_id, (Use(), None))) for plan in request.plans]
    return tool_service_pb2.CountPlannedCallsResponse(plans=plans)


def _counted(plan: tool_pb2.CallPlan, use: Use, ended_at: datetime | None) -> tool_pb2.CountedPlan:
    calls_left, total_left = left_of_plan(plan_to_domain(plan), use, time.time())
    return tool_pb2.CountedPlan(
        plan=plan,
        calls=use.calls,
        calls_left=calls_left,
        total=f"{use.total:f}",
        total_left=total_left,
        early_end_time=None if ended_at is None else timestamp(ended_at),
    )


async def forget_counted_calls(postgres: Connection, task_id: UUID) -> None:
    """Deletes which calls of a task were counted. Those that never ran are given back; the others stay counted."""
    rows = await (await postgres.execute(RULES.lock_counters_of_task, {"task_id": task_id})).fetchall()
    if rows:
        await _write(postgres, await _without_returned(postgres, {one: Use(*use) for one, *use in rows}))
    await postgres.execute(RULES.forget_counted_calls, {"task_id": task_id})
