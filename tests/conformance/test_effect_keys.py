"""The same effect once: a model that plans a payment again, in the same task or another one, does not pay twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.tools.calls.accept import begin_accepting, conclude
from services.tools.calls.accept_rules import RunCall
from services.tools.calls.closing import FenceCloser
from services.tools.calls.effect_keys import EffectSweep, once_each
from services.tools.calls.executing import ExecuteJob, Executor
from services.tools.calls.runs import RunningCalls
from services.tools.calls.stops import StopView
from services.tools.statements import MIGRATIONS, QUERIES, SCHEMA
from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
from tenure.domain.errors import TenureError
from tenure.domain.in_doubt import DidNotHappen, Happened, Resolution
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.runtime.store.postgres import open_pool
from tests.support.executors import executor_over, last_outcome
from tests.support.fix_postgres import MakeDatabase
from tests.support.planned_payments import Bank, Behaviour, Payer, Payments
from tests.support.sweeps import first, one_of_each

TREE = EffectKey(("/order",), EffectScope.TREE)
LONGEST_RUN = 0.2
PLANS, MANY_PLANS = 20, 4000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tools_dsn(new_database: MakeDatabase) -> str:
    """Of the module: each test has a tenant of its own."""
    return await new_database("effect_keys", MIGRATIONS)


@pytest.fixture
async def replicas(tools_dsn: str, tmp_path: Path) -> AsyncIterator[tuple[Executor, Executor]]:
    async with (
        executor_over(tools_dsn, tmp_path, lane=64) as one,
        executor_over(tools_dsn, tmp_path, lane=64) as other,
    ):
        yield one, other


Replicas = tuple[Executor, Executor]
Database = Callable[..., Awaitable[list[Any]]]


async def test_without_an_effect_key_the_bank_pays_twice(replicas: Replicas) -> None:
    pays = Payments(Bank(), key=None, timeout_seconds=LONGEST_RUN)
    payer = Payer.root()
    first = await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_HANGS))
    assert first.status is OutcomeStatus.TIMED_OUT
    await last_outcome(replicas[1], pays.job(payer, "2.0", 7))
    assert pays.paid(7) == 2


async def test_a_call_planned_again_after_its_timeout_pays_once(replicas: Replicas) -> None:
    pays = Payments(Bank(), TREE, timeout_seconds=LONGEST_RUN)
    payer = Payer.root()
    first = await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_HANGS))
    again = await last_outcome(replicas[1], pays.job(payer, "2.0", 7.0))
    assert (first.status, again.status) == (OutcomeStatus.TIMED_OUT, OutcomeStatus.SUCCEEDED)
    assert (pays.paid(7), len(pays.bank.requests), len(set(pays.bank.requests))) == (1, 2, 1)


async def test_a_repeat_gets_the_outcome_and_reads_whose_it_is(replicas: Replicas) -> None:
    pays, payer = Payments(Bank(), TREE), Payer.root()
    first = await last_outcome(replicas[0], pays.job(payer, "1.0", 7))
    again = await last_outcome(replicas[1], pays.job(payer.relative(), "3.0", 7, Behaviour.FAILS))
    assert (again.status, again.detail) == (OutcomeStatus.SUCCEEDED, "ALREADY_HAPPENED")
    assert f"by call 1.0 of task {payer.task_id}, 2" in again.content
    assert again.content.endswith(first.content)
    assert len(pays.bank.requests) == 1


async def test_fifty_callers_at_two_replicas_make_one_effect(replicas: Replicas) -> None:
    pays, root = Payments(Bank(honours_keys=False), TREE, EffectClass.UNSAFE), Payer.root()
    payers = [root, *(root.relative() for _ in range(24))]
    jobs = [(replicas[place % 2], pays.job(payer, f"1.{at}", 7)) for at in (0, 1) for place, payer in enumerate(payers)]
    outcomes = await asyncio.gather(*(last_outcome(executor, job) for executor, job in jobs))
    assert pays.paid(7) == 1
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
    assert sum(outcome.detail == "ALREADY_HAPPENED" for outcome in outcomes) == 49


@pytest.mark.parametrize("behaviour", [Behaviour.REFUSES, Behaviour.UNREACHABLE])
async def test_proof_that_nothing_happened_frees_the_key(replicas: Replicas, behaviour: Behaviour) -> None:
    pays, payer = Payments(Bank(), TREE, EffectClass.UNSAFE), Payer.root()
    first = await last_outcome(replicas[0], pays.job(payer, "1.0", 7, behaviour))
    again = await last_outcome(replicas[0], pays.job(payer, "2.0", 7))
    assert (first.status, first.no_effect) == (OutcomeStatus.FAILED, True)
    assert (again.status, again.detail, pays.paid(7)) == (OutcomeStatus.SUCCEEDED, "", 1)
    assert len(set(pays.bank.requests)) == len(pays.bank.requests), "the bank may have recorded its refusal"


async def test_no_later_proof_frees_a_key_of_unknown_effect(replicas: Replicas) -> None:
    pays, payer = Payments(Bank(), TREE), Payer.root()
    for place, behaviour in enumerate((Behaviour.PAYS_AND_LOSES, Behaviour.UNREACHABLE, Behaviour.PAYS)):
        await last_outcome(replicas[0], pays.job(payer, f"{place + 1}.0", 7, behaviour))
    assert (pays.paid(7), len(set(pays.bank.requests))) == (1, 1)


async def test_refused_repeat_of_a_settlement_proves_nothing(replicas: Replicas) -> None:
    pays, payer = Payments(Bank(), TREE, settle_seconds=60.0), Payer.root()
    first = await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_LOSES_AND_REFUSES))
    again = await last_outcome(replicas[0], pays.job(payer, "2.0", 7))
    assert (first.status, first.no_effect, again.status) == (OutcomeStatus.FAILED, False, OutcomeStatus.SUCCEEDED)
    assert (pays.paid(7), len(set(pays.bank.requests))) == (1, 1)


@pytest.mark.parametrize("key", [TREE, None], ids=["with an effect key", "without"])
async def test_keyed_call_that_had_begun_is_in_doubt_without_tool(
    replicas: Replicas, tools_database: Database, key: EffectKey | None
) -> None:
    """A rolling deploy: the bank paid, the runner was lost, and the newer replica no longer has the tool."""
    pays, payer = Payments(Bank(), key), Payer.root()
    await _paid_by_a_lost_runner(replicas, pays, payer, tools_database)
    job = pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_HANGS)
    gone = replace(job.request, clear=Outcome(OutcomeStatus.INVALID_ARGUMENTS, "There is no such tool."))
    first = await last_outcome(replicas[1], ExecuteJob(gone, None))
    assert (first.status, first.call_attempt) == (OutcomeStatus.IN_DOUBT, 1)
    assert "an earlier attempt began, its end was lost, and the call was not repeated: There" in first.content
    if key is not None:
        planned_again = await last_outcome(replicas[1], pays.job(payer, "2.0", 7))
        assert planned_again.status is OutcomeStatus.SUCCEEDED
    permitted = replace(job.request, resolution=_resolution(DidNotHappen(True)))
    repeated = await last_outcome(replicas[1], ExecuteJob(permitted, pays.job(payer, "1.0", 7).work))
    assert (repeated.status, pays.paid(7)) == (OutcomeStatus.SUCCEEDED, 1)
    pays.bank.lets_go.set()


@pytest.mark.parametrize(
    ("before", "after"),
    first([(TREE, None), (None, TREE), (TREE, EffectKey(("/order", "/bank"), EffectScope.TREE))]),
    ids=["removed", "added", "changed"],
)
async def test_call_keeps_its_key_when_the_effect_key_changes(
    replicas: Replicas, tools_database: Database, before: EffectKey | None, after: EffectKey | None
) -> None:
    """A rolling deploy with another config file. The bank would not recognise a repeat under another key."""
    pays, payer = Payments(Bank(), before), Payer.root()
    await _paid_by_a_lost_runner(replicas, pays, payer, tools_database)
    again = replace(pays, key=after).job(payer, "1.0", 7, Behaviour.PAYS_AND_HANGS)
    assert (await last_outcome(replicas[1], again)).status is OutcomeStatus.SUCCEEDED
    assert (pays.paid(7), len(pays.bank.requests), len(set(pays.bank.requests))) == (1, 2, 1)
    pays.bank.lets_go.set()


async def _paid_by_a_lost_runner(replicas: Replicas, pays: Payments, payer: Payer, database: Database) -> None:
    running = asyncio.create_task(last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_HANGS)))
    await pays.bank.paid_once.wait()
    await database("update calls set runner_id = null where task_id = %s and state = 'STARTED'", payer.task_id)
    running.cancel()
    await asyncio.wait([running])


async def test_unsafe_call_of_an_unknown_effect_is_refused(replicas: Replicas) -> None:
    pays, payer = Payments(Bank(honours_keys=False), TREE, EffectClass.UNSAFE), Payer.root()
    first = await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_LOSES))
    again = await last_outcome(replicas[1], pays.job(payer, "2.0", 7))
    assert (first.status, again.status, again.detail) == (
        OutcomeStatus.IN_DOUBT,
        OutcomeStatus.FAILED,
        "EFFECT_UNKNOWN",
    )
    assert f"by call 1.0 of task {payer.task_id}" in again.content
    resolved = await last_outcome(
        replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_LOSES, resolution=_resolution(Happened("receipt 9")))
    )
    third = await last_outcome(replicas[1], pays.job(payer, "3.0", 7))
    assert (resolved.status, third.status, third.detail) == (
        OutcomeStatus.SUCCEEDED,
        OutcomeStatus.SUCCEEDED,
        "ALREADY_HAPPENED",
    )
    assert "receipt 9" in third.content
    assert pays.paid(7) == 1


async def test_tool_that_refuses_a_repeat_fails_the_call(replicas: Replicas) -> None:
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.REFUSE)
    pays, payer = Payments(Bank(), key), Payer.root()
    await last_outcome(replicas[0], pays.job(payer, "1.0", 7))
    again = await last_outcome(replicas[0], pays.job(payer, "2.0", 7))
    assert (again.status, again.detail, pays.paid(7)) == (OutcomeStatus.FAILED, "ALREADY_HAPPENED", 1)


async def test_person_who_is_asked_decides_about_the_repeat(replicas: Replicas) -> None:
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
    pays, payer = Payments(Bank(), key), Payer.root()
    await last_outcome(replicas[0], pays.job(payer, "1.0", 7))
    for call_id in ("2.0", "3.0"):
        in_doubt = await last_outcome(replicas[0], pays.job(payer, call_id, 7))
        assert in_doubt.status is OutcomeStatus.IN_DOUBT
        assert in_doubt.content.startswith(
            "This call was not run: its effect has happened already, by call 1.0 of task"
        )
    settled = await last_outcome(replicas[0], pays.job(payer, "2.0", 7, resolution=_resolution(Happened("as before"))))
    assert (settled.content, pays.paid(7)) == ("as before", 1)
    made = await last_outcome(replicas[1], pays.job(payer, "3.0", 7, resolution=_resolution(DidNotHappen(True))))
    assert (made.status, made.call_attempt, pays.paid(7)) == (OutcomeStatus.SUCCEEDED, 2, 2)


async def test_permitted_repeat_without_effect_forgets_no_effect(replicas: Replicas) -> None:
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
    pays, payer = Payments(Bank(), key), Payer.root()
    await last_outcome(replicas[0], pays.job(payer, "1.0", 7))
    for call_id in ("2.0", "3.0"):
        in_doubt = await last_outcome(replicas[0], pays.job(payer, call_id, 7, Behaviour.REFUSES))
        assert in_doubt.content.startswith(
            "This call was not run: its effect has happened already, by call 1.0 of task"
        )
        permitted = pays.job(payer, call_id, 7, Behaviour.REFUSES, resolution=_resolution(DidNotHappen(True)))
        assert (await last_outcome(replicas[1], permitted)).no_effect
    third = await last_outcome(replicas[0], pays.job(payer, "4.0", 7))
    assert (third.status, pays.paid(7)) == (OutcomeStatus.IN_DOUBT, 1)


async def test_permitted_repeat_without_effect_keeps_the_doubt(replicas: Replicas) -> None:
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
    pays, payer = Payments(Bank(), key, EffectClass.UNSAFE), Payer.root()
    await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.PAYS_AND_LOSES))
    await last_outcome(replicas[0], pays.job(payer, "2.0", 7, Behaviour.REFUSES))
    permitted = pays.job(payer, "2.0", 7, Behaviour.REFUSES, resolution=_resolution(DidNotHappen(True)))
    assert (await last_outcome(replicas[0], permitted)).no_effect
    third = await last_outcome(replicas[0], pays.job(payer, "3.0", 7))
    assert (third.status, pays.paid(7)) == (OutcomeStatus.IN_DOUBT, 1)


async def test_permitted_repeat_that_never_began_is_not_in_doubt(
    replicas: Replicas, tools_dsn: str, tools_database: Database
) -> None:
    """Its task ends between the acceptance and the start."""
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
    pays, payer = Payments(Bank(), key), Payer.root()
    await last_outcome(replicas[0], pays.job(payer, "1.0", 7))
    await last_outcome(replicas[0], pays.job(payer, "2.0", 7))
    job = pays.job(payer, "2.0", 7, resolution=_resolution(DidNotHappen(True)))
    batch, verdicts = [job.request], list[Any]([RunCall(2)])
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        async with pool.connection() as postgres, postgres.transaction():
            accepting = await begin_accepting(postgres, batch, StopView())
            await conclude(postgres, accepting, batch, verdicts, payer.task_id)
        await FenceCloser(pool, RunningCalls()).fence(job.request.claims, payer.task_id, close=True)
    states = "select state from calls where task_id = %s and call_id = '2.0'"
    assert await tools_database(states, payer.task_id) == [("NOT_RUN",)]


async def test_person_decides_about_a_call_that_ran_before(replicas: Replicas) -> None:
    """Its first attempt is in doubt; another call made the effect; then its second attempt is a repeat."""
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
    pays, payer = Payments(Bank(honours_keys=False), key, EffectClass.UNSAFE), Payer.root()

    async def resolved(call_id: str, attempt: int, behaviour: Behaviour) -> Outcome:
        resolution = replace(_resolution(DidNotHappen(True)), call_attempt=attempt)
        return await last_outcome(replicas[0], pays.job(payer, call_id, 7, behaviour, resolution=resolution))

    await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.LOSES))
    await last_outcome(replicas[0], pays.job(payer, "2.0", 7))
    assert (await resolved("2.0", 1, Behaviour.PAYS)).status is OutcomeStatus.SUCCEEDED
    in_doubt = await resolved("1.0", 1, Behaviour.LOSES)
    assert (in_doubt.status, in_doubt.call_attempt, pays.paid(7)) == (OutcomeStatus.IN_DOUBT, 2, 1)
    assert in_doubt.content.startswith("This call was not run: its effect has happened already, by call 2.0 of task")
    lost_again = await resolved("1.0", 2, Behaviour.LOSES)
    assert (lost_again.status, lost_again.call_attempt) == (OutcomeStatus.IN_DOUBT, 3)
    assert "the bank was asked, and the connection broke" in lost_again.content


async def test_doubt_about_a_lost_record_permits_no_repeat(replicas: Replicas, tools_database: Database) -> None:
    """Only who was asked about the repeat has permitted it. No runner is known of this call either."""
    key = EffectKey(("/order",), EffectScope.TREE, on_repeat=OnRepeat.ASK)
    pays, payer = Payments(Bank(honours_keys=False), key, EffectClass.UNSAFE), Payer.root()
    await last_outcome(replicas[0], pays.job(payer, "1.0", 7, Behaviour.LOSES))
    await tools_database("delete from effects where task_id = %s", payer.task_id)
    await tools_database("update calls set runner_id = null where task_id = %s", payer.task_id)
    await last_outcome(replicas[0], pays.job(payer, "2.0", 7))
    again = await last_outcome(
        replicas[0], pays.job(payer, "1.0", 7, Behaviour.LOSES, resolution=_resolution(DidNotHappen(True)))
    )
    assert (again.status, again.call_attempt, pays.paid(7)) == (OutcomeStatus.IN_DOUBT, 2, 1)
    assert again.content.startswith("This call was not run: its effect has happened already, by call 2.0 of task")


@pytest.mark.parametrize(
    "scope",
    one_of_each(dict.fromkeys((EffectScope.TREE, *EffectScope)), kind=lambda scope: scope is EffectScope.TENANT),
)
async def test_an_effect_happens_once_in_its_scope(replicas: Replicas, scope: EffectScope) -> None:
    period = 3600.0 if scope is EffectScope.TENANT else 0.0
    pays = Payments(Bank(), EffectKey(("/order",), scope, period))
    root = Payer.root("talk", "SCHEDULER/s/1")
    same_talk = Payer.root("talk", "SCHEDULER/s/2")
    same_run = Payer.root("other", "SCHEDULER/s/1")
    unrelated = Payer.root()
    paid: dict[str, int] = {}
    for name, payer in {"tree": root.relative(), "talk": same_talk, "run": same_run, "unrelated": unrelated}.items():
        order = f"{scope}-{name}"
        for place, each in enumerate((root, payer, root)):
            await last_outcome(replicas[0], pays.job(each, f"{place + 1}.{len(paid)}", order))
        paid[name] = pays.paid(order)
    once = {
        EffectScope.TASK: set[str](),
        EffectScope.TREE: {"tree"},
        EffectScope.CONVERSATION: {"tree", "talk"},
        EffectScope.SOURCE: {"tree", "run"},
        EffectScope.TENANT: {"tree", "talk", "run", "unrelated"},
    }
    assert {name for name, count in paid.items() if count == 1} == once[scope]
    assert set(paid.values()) <= {1, 2}


async def test_tenants_do_not_share_effects(replicas: Replicas) -> None:
    key = EffectKey(("/order",), EffectScope.TENANT, 3600.0)
    for pays in (Payments(Bank(), key), Payments(Bank(), key)):
        await last_outcome(replicas[0], pays.job(Payer.root(), "1.0", 7))
        assert pays.paid(7) == 1


async def test_an_effect_is_made_again_after_its_period(replicas: Replicas, tools_database: Database) -> None:
    pays = Payments(Bank(), EffectKey(("/order",), EffectScope.TENANT, 3600.0))
    await last_outcome(replicas[0], pays.job(Payer.root(), "1.0", 7))
    await tools_database("update effects set ends_at = ends_at - interval '1 hour'")
    await last_outcome(replicas[0], pays.job(Payer.root(), "1.0", 7))
    again = await last_outcome(replicas[0], pays.job(Payer.root(), "1.0", 7))
    assert (pays.paid(7), again.detail) == (2, "ALREADY_HAPPENED")


class _Between:
    """A connection that awaits `work` after the statement `first`."""

    def __init__(self, postgres: Any, first: bytes, work: Callable[[], Awaitable[object]]) -> None:
        self._postgres, self._first, self._work = postgres, first, work

    async def execute(self, statement: bytes, parameters: object) -> Any:
        cursor = await self._postgres.execute(statement, parameters)
        if statement == self._first:
            await self._work()
        return cursor


async def test_key_that_a_call_is_about_to_take_is_not_swept(
    replicas: Replicas, tools_database: Database, tools_dsn: str
) -> None:
    pays = Payments(Bank(), EffectKey(("/order",), EffectScope.TENANT, 3600.0))
    await last_outcome(replicas[0], pays.job(Payer.root(), "1.0", 7))
    await tools_database("update effects set ends_at = ends_at - interval '1 hour'")
    request = pays.job(Payer.root(), "1.0", 7).request
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool, pool.connection() as postgres:
        between: Any = _Between(postgres, QUERIES.insert_effects, EffectSweep(pool).sweep)
        verdicts: list[Any] = [RunCall(1)]
        async with postgres.transaction():
            await once_each(between, [request], {}, verdicts)
    [verdict] = verdicts
    assert isinstance(verdict, RunCall)
    assert await tools_database("select task_id from effects where tenant = %s", pays.tenant) == [
        (request.key.task_id,)
    ]


async def test_sweep_deletes_all_effects_whose_period_is_over(tools_dsn: str, tools_database: Database) -> None:
    await tools_database(
        "insert into effects (digest, tenant, tool, scope, key, task_id, call_id, period, begun_at, ends_at)"
        " select sha256(n::text::bytea), 't', 'pay', 'TENANT', '{}', gen_random_uuid(), '1.0', 0, now(), now()"
        "   from generate_series(1, 1001) n"
    )
    async with open_pool(tools_dsn, service="tools", schema=SCHEMA) as pool:
        await EffectSweep(pool).sweep()
    assert await tools_database("select count(*) from effects where tenant = 't'") == [(0,)]


# Plans of models: whatever they plan, an order is paid at most once.


async def _play(replicas: Replicas, seed: int) -> None:
    chance = random.Random(seed)
    is_keyed = chance.random() < 0.5
    scope = chance.choice([EffectScope.TREE, EffectScope.TENANT])
    key = EffectKey(("/order",), scope, 3600.0 if scope is EffectScope.TENANT else 0.0, chance.choice(list(OnRepeat)))
    pays = Payments(
        Bank(honours_keys=is_keyed),
        key,
        EffectClass.KEYED if is_keyed else EffectClass.UNSAFE,
        timeout_seconds=LONGEST_RUN,
    )
    root = Payer.root()
    payers = [root, root.relative(), root.relative(), Payer.root() if scope is EffectScope.TENANT else root]
    outcomes: list[tuple[int, Outcome]] = []
    for step in range(1, chance.randint(3, 5)):
        calls = [
            (chance.choice(replicas), chance.choice(payers), place, chance.choice((7, 8)), chance.choice(_LIKELY))
            for place in range(chance.randint(1, 4))
        ]
        attempts = [
            (order, _try(executor, pays, payer, f"{step}.{place}", order, behaviour))
            for executor, payer, place, order, behaviour in calls
        ]
        answers = await asyncio.gather(*(attempt for _, attempt in attempts))
        outcomes += [
            (order, answer) for (order, _), answer in zip(attempts, answers, strict=True) if answer is not None
        ]
    for order in (7, 8):
        made = [one for paid, one in outcomes if paid == order and one.status is OutcomeStatus.SUCCEEDED]
        assert pays.paid(order) <= 1, f"seed {seed}: order {order} was paid {pays.paid(order)} times"
        assert not made or pays.paid(order) == 1, f"seed {seed}: order {order} is reported as paid"
        assert sum(one.detail != "ALREADY_HAPPENED" for one in made) <= 1, f"seed {seed}: order {order}"


_LIKELY = [*Behaviour, Behaviour.PAYS, Behaviour.PAYS, Behaviour.PAYS_AND_LOSES]


async def _try(
    executor: Executor, pays: Payments, payer: Payer, call_id: str, order: int, behaviour: Behaviour
) -> Outcome | None:
    try:
        return await last_outcome(executor, pays.job(payer, call_id, order, behaviour))
    except TenureError:
        return None  # of a fault of the bank that the service does not answer for: the record decides


async def _play_all(replicas: Replicas, seeds: range) -> None:
    for start in range(seeds.start, seeds.stop, 50):
        await asyncio.gather(*(_play(replicas, seed) for seed in range(start, min(start + 50, seeds.stop))))


async def test_no_plan_pays_an_order_twice(replicas: Replicas) -> None:
    await _play_all(replicas, range(PLANS))


@pytest.mark.faults
async def test_none_of_many_plans_pays_an_order_twice(replicas: Replicas) -> None:
    await _play_all(replicas, range(PLANS, PLANS + MANY_PLANS))


def _resolution(decision: Any) -> Resolution:
    return Resolution(1, decision, "I looked", "olga")
