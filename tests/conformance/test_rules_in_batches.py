"""Rules on calls that are accepted together: bounds with effect keys, batches of tenants, and bounded transactions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.tools.calls import accept_ruled
from services.tools.calls.accept_rules import AnswerFromRecord, ConcludeCall, RunCall, RunnerIdentity
from services.tools.calls.executing import ExecuteJob, Executor
from services.tools.calls.stops import BARRIER_SECONDS
from services.tools.rules.changes import RuleChanges
from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
from tenure.domain.errors import Unavailable
from tenure.domain.in_doubt import Abandon, DidNotHappen, Happened, Resolution
from tenure.domain.tools import Outcome, OutcomeStatus, PlannedCalls
from tenure.runtime.expressions import Evaluation, Expressions
from tenure.runtime.store.barrier import earlier_have_ended
from tenure.v1 import admin_service_pb2 as admin_pb
from tests.support.executors import executor_over, last_outcome
from tests.support.patience import CALL_SECONDS
from tests.support.planned_payments import Bank, Payer, Payments
from tests.support.tool_rules import ALLOW, rule

ASKS = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
ANSWERS = EffectKey(("/order",), EffectScope.TREE)
IN_DOUBT = (OutcomeStatus.IN_DOUBT, "")
DENIED = (OutcomeStatus.NOT_ALLOWED, "RULE_DENIED")
RAN = (OutcomeStatus.SUCCEEDED, "")


class Held(Expressions):
    """Holds the evaluations for one tenant, as a slow rule does."""

    def __init__(self) -> None:
        super().__init__()
        self.held_tenant, self.began, self.may_end = "", asyncio.Event(), asyncio.Event()

    async def values(self, evaluations: Sequence[Evaluation], values: Mapping[str, Any]) -> list[bool | str]:
        if evaluations and values["tenant"] == self.held_tenant:
            self.began.set()
            await self.may_end.wait()
        return await super().values(evaluations, values)


@pytest.fixture
def expressions() -> Held:
    return Held()


@pytest.fixture
async def executor(tools_dsn: str, tmp_path: Path, expressions: Held) -> AsyncIterator[Executor]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(executor_over(tools_dsn, tmp_path, lane=64, expressions=expressions))


async def set_rule(executor: Executor, pays: Payments, when: str = "", **bounds: Any) -> None:
    ruled = executor._ruled
    made = rule(f"pays-{len(when)}", ALLOW, when, tool="pay", **bounds)
    changes = RuleChanges(ruled._pool, ruled.book, ruled._expressions)
    await changes.set(pays.tenant, admin_pb.SetToolRuleRequest(tool_rule=made, actor="user/ann"))


async def verdict(executor: Executor, job: ExecuteJob) -> tuple[OutcomeStatus, str]:
    outcome: Outcome = await last_outcome(executor, job)
    return outcome.status, outcome.detail


def resolved(decision: Any) -> Resolution:
    return Resolution(1, decision, "I looked", "olga")


async def test_repeats_that_a_person_permits_are_counted(executor: Executor) -> None:
    pays, payer = Payments(Bank(), ASKS), Payer.root()
    await set_rule(executor, pays, count=2)
    assert await verdict(executor, pays.job(payer, "1.0", 7)) == RAN
    assert await verdict(executor, pays.job(payer, "2.0", 7)) == IN_DOUBT
    assert await verdict(executor, pays.job(payer, "3.0", 7)) == DENIED
    permitted = resolved(DidNotHappen(True))
    assert await verdict(executor, pays.job(payer, "2.0", 7, resolution=permitted)) == RAN
    assert await verdict(executor, pays.job(payer, "4.0", 7)) == DENIED
    assert pays.paid(7) == 2


async def test_repeat_that_a_plan_and_a_person_permit_has_its_plan(executor: Executor, tools_database: Any) -> None:
    """The plan answers the approval, the person the question about the effect."""
    pays, payer = Payments(Bank(), ASKS), Payer.root()
    now = float(int(time.time()))
    plan = PlannedCalls("task/w1", "pay", 5, approved_by="user/ann", approve_time=now - 60, end_time=now + 3600)

    def planned(call_id: str, **fields: Any) -> ExecuteJob:
        job = pays.job(payer, call_id, 7, **fields)
        claims = replace(job.request.claims, plans=(plan,))
        return replace(job, request=replace(job.request, claims=claims, needs_approval=True))

    assert await verdict(executor, planned("1.0")) == RAN
    assert await verdict(executor, planned("2.0")) == IN_DOUBT
    assert await verdict(executor, planned("2.0", resolution=resolved(DidNotHappen(True)))) == RAN
    plans = await tools_database("select call_id, plan_id from calls where task_id = %s order by 1", payer.task_id)
    assert plans == [("1.0", "task/w1"), ("2.0", "task/w1")]


@pytest.mark.parametrize("decision", [Happened("as before"), Abandon()])
async def test_a_repeat_that_is_settled_without_a_run_is_given_back(executor: Executor, decision: Any) -> None:
    pays, payer = Payments(Bank(), ASKS), Payer.root()
    await set_rule(executor, pays, count=2)
    assert await verdict(executor, pays.job(payer, "1.0", 7)) == RAN
    assert await verdict(executor, pays.job(payer, "2.0", 7)) == IN_DOUBT
    await last_outcome(executor, pays.job(payer, "2.0", 7, resolution=resolved(decision)))
    assert await verdict(executor, pays.job(payer, "3.0", 8)) == RAN
    assert await verdict(executor, pays.job(payer, "4.0", 9)) == DENIED
    assert [pays.paid(order) for order in (7, 8, 9)] == [1, 1, 0]


def identity(_key: object) -> RunnerIdentity:
    return RunnerIdentity(uuid.uuid4(), None)


async def decided(executor: Executor, *jobs: ExecuteJob) -> list[Any]:
    return [type(one) for one in await executor._ruled.decide([job.request for job in jobs], uuid.uuid4(), identity)]


async def test_a_returned_share_is_free_for_the_rest_of_the_batch(executor: Executor) -> None:
    pays, payer = Payments(Bank(), ANSWERS), Payer.root()
    await set_rule(executor, pays, count=2)
    assert await verdict(executor, pays.job(payer, "1.0", 7)) == RAN
    jobs = [pays.job(payer, "2.0", 7), pays.job(payer, "2.1", 8), pays.job(payer, "2.2", 9)]
    assert await decided(executor, *jobs) == [ConcludeCall, RunCall, AnswerFromRecord]


async def test_a_transaction_decides_for_a_bounded_time(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept_ruled, "_DECIDING_SECONDS", -1.0)  # each transaction decides one call
    pays, payer = Payments(Bank(), key=None), Payer.root()
    await set_rule(executor, pays, "used.count < 100", count=2)
    jobs = [pays.job(payer, f"1.{place}", place) for place in range(3)]
    assert await decided(executor, *jobs) == [RunCall, RunCall, AnswerFromRecord]


async def test_a_stop_does_not_wait_for_slow_rules(
    executor: Executor, expressions: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that evaluates them ends before the stop gives up, and records nothing."""
    assert accept_ruled._LONGEST_DECIDING_SECONDS < BARRIER_SECONDS
    monkeypatch.setattr(accept_ruled, "_LONGEST_DECIDING_SECONDS", 0.1)
    pays, ruled = Payments(Bank(), key=None), executor._ruled
    await set_rule(executor, pays, "used.count < 100", count=1)
    job = pays.job(Payer.root(), "1.0", 7)
    expressions.held_tenant = pays.tenant
    with pytest.raises(Unavailable) as refusal:
        await decided(executor, job)
    assert refusal.value.reason == "RULES_SLOW"
    assert await earlier_have_ended(ruled._pool, BARRIER_SECONDS)
    monkeypatch.setattr(accept_ruled, "_LONGEST_DECIDING_SECONDS", CALL_SECONDS)
    expressions.may_end.set()
    assert await verdict(executor, job) == RAN


@pytest.mark.parametrize("when", ["true", "used.count < 100"])
async def test_slow_rules_of_a_tenant_do_not_hold_up_another_one(
    executor: Executor, expressions: Held, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before their transaction nor in it."""
    monkeypatch.setattr(accept_ruled, "_LONGEST_DECIDING_SECONDS", CALL_SECONDS)
    slow, other = Payments(Bank(), key=None), Payments(Bank(), key=None)
    for pays in (slow, other):
        await set_rule(executor, pays, when, count=3)
    expressions.held_tenant = slow.tenant
    held = asyncio.create_task(verdict(executor, slow.job(Payer.root(), "1.0", 7)))
    async with asyncio.timeout(CALL_SECONDS):
        await expressions.began.wait()
        for place in range(3):
            assert await verdict(executor, other.job(Payer.root(), "1.0", place)) == RAN
        assert not held.done()
        expressions.may_end.set()
        assert await held == RAN
