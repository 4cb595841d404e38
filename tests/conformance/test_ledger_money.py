"""Budgets in money, warnings and grants: the ledger prices each call, and settles it by the prices it reserved by."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import AlreadyExists, BudgetExhausted, InvalidRequest, WrongState
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    Checkpoint,
    MakeCheckpoint,
    answer,
    entry,
    kinds,
    reserve,
    words,
)

pytestmark = pytest.mark.server
OPUS = "claude-opus-4-8"
INPUT, OUTPUT, WRITTEN, READ = 5_000, 25_000, 6_250, 500
"""What a token costs there, in nano dollars."""
CENT = 10**7
COST_EXCEEDED, QUEUED = task_pb2.TASK_STATE_COST_EXCEEDED, task_pb2.TASK_STATE_QUEUED


def limits(nano_usd: int = 0, tokens: int = 0) -> Any:
    return task_pb2.Limits(max_nano_usd=nano_usd, max_tokens=tokens)


def used(step: int = 1, **counts: Any) -> Any:
    """An answer that used so much."""
    message = ledger_pb2.AssistantMessage(
        attempt_number=1, content_json="[]", stop_reason="end_turn", usage=task_pb2.TokenUsage(**counts)
    )
    return entry(step, assistant_message=message)


async def grant(replica: Any, task_id: Any, tokens: int = 0, nano_usd: int = 0, request_id: str = "") -> Any:
    granted = ledger_pb2.OperatorRequest.GrantBudget(extra_tokens=tokens, extra_nano_usd=nano_usd)
    request = pb.AppendForeignRequest(
        task_id=task_id,
        request_id=request_id or str(uuid4()),
        actor="olga",
        operator_request=ledger_pb2.OperatorRequest(reason="worth it", grant_budget=granted),
    )
    return (await replica.stub.AppendForeign(request, timeout=TIMEOUT_SECONDS)).task


async def bills(replica: Any, task_id: Any) -> Any:
    return (await replica.stub.ListBills(admin_pb.ListBillsRequest(task_id=task_id), timeout=TIMEOUT_SECONDS)).bills


async def test_a_call_reserves_money_and_is_charged_its_usage(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits(CENT))).task_id)
    first = await owner.commit(reserve=reserve(input_tokens=100, output=100, model=OPUS))
    most = 100 * WRITTEN + 100 * OUTPUT
    assert first.reserve.granted.reserved_nano_usd == first.budget.reserved_nano_usd == most
    usage = {"input_tokens": 10, "output_tokens": 7, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30}
    second = await owner.commit(used(**usage))
    costs = 10 * INPUT + 7 * OUTPUT + 20 * WRITTEN + 30 * READ
    assert (second.budget.used_nano_usd, second.budget.reserved_nano_usd) == (costs, 0)
    task = await replica.get(owner.task.task_id)
    assert (task.used_nano_usd, task.budget.max_nano_usd, task.budget.unpriced_calls) == (costs, CENT, 0)
    [bill] = await bills(replica, task.task_id)
    assert (bill.nano_usd, bill.unpriced) == (costs, False)
    [attempt] = [one.body.model_attempt for one in await replica.entries(task.task_id) if _is(one, "model_attempt")]
    assert (attempt.reserved_nano_usd, attempt.budget.reserved_nano_usd) == (most, most)
    assert [tier.output for tier in attempt.prices.tiers] == [25 * 10**9]


async def test_the_output_is_clamped_to_the_money_that_is_left(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits(100 * WRITTEN + 30 * OUTPUT))).task_id)
    granted = (await owner.commit(reserve=reserve(input_tokens=100, output=500, model=OPUS))).reserve.granted
    assert granted.max_output_tokens == 30


async def test_the_cap_in_money_ends_and_a_siblings_call_makes_wait(replica: Checkpoint) -> None:
    root, child = await tree(replica, limits=limits(200 * WRITTEN + 40 * OUTPUT))
    await root.commit(reserve=reserve(input_tokens=150, output=40, model=OPUS))
    wanted = reserve(input_tokens=100, output=100, least=10, model=OPUS)
    assert (await child.commit(reserve=wanted)).reserve.denied.reason == "BUDGET_BUSY"
    await root.commit(used(output_tokens=40))
    assert (await child.commit(reserve=wanted)).reserve.HasField("granted")
    await child.commit(used(input_tokens=100, output_tokens=10))
    denied = (await child.commit(words(), reserve=reserve(step=2, input_tokens=100, least=20, model=OPUS))).reserve
    assert denied.denied.reason == "MONEY_LIMIT"


async def tree(replica: Any, **spec: Any) -> Any:
    """A root and a task under it, both held; the child's row is tied to the root's budget in the database."""
    root = await replica.create(**spec)
    child = await replica.create()
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", root.task_id, child.task_id)
    return await replica.claim(root.task_id), await replica.claim(child.task_id)


async def test_a_task_keeps_within_caps_of_its_own_below_its_roots(replica: Checkpoint) -> None:
    root, child = await tree(replica, limits=limits(CENT, 100_000))
    caps = "update ledger.tasks set own_max_tokens = 250, own_max_nano_usd = %s where task_id = %s"
    await replica.query(caps, 100 * WRITTEN + 60 * OUTPUT, child.task.task_id)
    granted = (await child.commit(reserve=reserve(input_tokens=100, output=500, model=OPUS))).reserve.granted
    assert granted.max_output_tokens == 60
    await child.commit(used(input_tokens=100, output_tokens=10))
    assert (
        await child.commit(reserve=reserve(step=2, input_tokens=141, model=OPUS))
    ).reserve.denied.reason == "TOKEN_LIMIT"
    assert (await root.commit(reserve=reserve(input_tokens=141, model=OPUS))).reserve.HasField("granted")


async def test_a_call_of_unknown_price_is_free_or_refused(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve(model="unpriced"))
    budget = (await owner.commit(answer(tokens=50))).budget
    assert (budget.used_tokens, budget.used_nano_usd, budget.unpriced_calls) == (50, 0, 1)
    [bill] = await bills(replica, owner.task.task_id)
    assert (bill.nano_usd, bill.unpriced) == (0, True)
    capped = await replica.claim((await replica.create(limits=limits(CENT))).task_id)
    assert (await capped.commit(reserve=reserve(model="unpriced"))).reserve.denied.reason == "MODEL_UNPRICED"


async def test_default_cap_allows_unpriced_calls_with_one_warning(replica: Checkpoint) -> None:
    cap = task_pb2.Limits(max_nano_usd=CENT, money_cap=task_pb2.MONEY_CAP_DEFAULT)
    owner = await replica.claim((await replica.create(limits=cap, agent=task_pb2.AgentSpec(model=OPUS))).task_id)
    warned = []
    for step in (1, 2):
        granted = (await owner.commit(reserve=reserve(step=step, model="unpriced"))).reserve.granted
        assert (granted.reserved_tokens, granted.reserved_nano_usd) == (200, 0)
        response = await owner.commit(answer(step=step, tokens=50))
        warned.append([one.body.budget_warning.limit for one in response.foreign_entries])
    assert warned == [["MODEL_UNPRICED"], []]
    priced = (await owner.commit(reserve=reserve(step=3, output=10**6, model=OPUS))).reserve.granted
    assert 0 < priced.reserved_nano_usd <= CENT


async def test_own_prices_apply_and_a_lost_call_costs_its_reservation(
    checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[models.house]\ninput = 1\noutput = 2\n")
    replica = await checkpoint(prices_file=prices)
    owner = await replica.claim((await replica.create(limits=limits(CENT))).task_id)
    await owner.commit(reserve=reserve(input_tokens=70, output=30, model="house"))
    prices.write_text("[models.house]\ninput = 9\noutput = 9\n")
    other = await checkpoint(dsn=replica.dsn, prices_file=prices)
    await other.requeue(owner, output_tokens=12)
    task = await replica.get(owner.task.task_id)
    assert (task.budget.used_nano_usd, task.budget.reserved_nano_usd) == (70 * 1000 + 12 * 2000, 0)


async def test_a_short_cap_warns_once_and_again_after_a_grant(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create(limits=limits(CENT, 1000))).task_id)
    seen = []
    for step, tokens in enumerate((799, 1, 50), 1):
        await owner.commit(reserve=reserve(step=step, input_tokens=1, output=900, model=OPUS))
        response = await owner.commit(used(step, input_tokens=tokens))
        seen.append([one.body.budget_warning.limit for one in response.foreign_entries])
    assert seen == [[], ["TOKEN_LIMIT"], []]
    await grant(replica, owner.task.task_id, tokens=50)
    for step in (4, 5):
        await owner.commit(reserve=reserve(step=step, input_tokens=1, output=900, model=OPUS))
        await owner.commit(used(step, input_tokens=1))
    warnings = [one for one in await replica.entries(owner.task.task_id) if _is(one, "budget_warning")]
    stood = [
        (one.body.budget_warning.budget.used_tokens, one.body.budget_warning.budget.max_tokens) for one in warnings
    ]
    assert stood == [(800, 1000), (851, 1050)]
    assert {(one.actor, one.epoch) for one in warnings} == {("checkpoint", 0)}
    changes = "select reason, state, sequence from ledger.changes where reason = 'BUDGET_WARNING' order by position"
    assert await replica.query(changes) == [("BUDGET_WARNING", "RUNNING", one.sequence) for one in warnings]


async def test_a_repeated_commit_returns_its_warning_again(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits(tokens=100))).task_id)
    await owner.commit(reserve=reserve(input_tokens=50, output=50))
    request = owner.request(used(input_tokens=90), reserve=reserve(step=2, input_tokens=1, output=5))
    first = await owner.send(request)
    assert await owner.send(request) == first
    assert [one.body.WhichOneof("body") for one in first.foreign_entries] == ["budget_warning"]
    assert kinds(await replica.entries(owner.task.task_id))[-3:] == [
        "assistant_message",
        "budget_warning",
        "model_attempt",
    ]


async def test_a_grant_requeues_a_root_without_budget_once(replica: Checkpoint) -> None:
    root, child = await tree(replica, limits=limits(CENT, 100))
    await root.commit(reserve=reserve(input_tokens=50, output=50, model=OPUS))
    await root.commit(used(input_tokens=100))
    end = pb.Transition(to_state=COST_EXCEEDED, reason="TOKEN_LIMIT", message="used up", result="so far")
    await root.commit(transition=end)
    stopped = await replica.get(root.task.task_id)
    assert (stopped.result, stopped.reason) == ("so far", "TOKEN_LIMIT")
    assert stopped.budget.used_nano_usd == 100 * INPUT
    with pytest.raises(BudgetExhausted):
        await grant(replica, stopped.task_id, nano_usd=CENT)
    granted = await grant(replica, child.task.task_id, 500, CENT, "g-1")
    assert granted.task_id == stopped.task_id
    assert (granted.state, granted.attempt, granted.reason) == (QUEUED, 2, "BUDGET_GRANTED")
    assert (granted.budget.max_tokens, granted.budget.max_nano_usd) == (600, 2 * CENT)
    assert await grant(replica, stopped.task_id, 500, CENT, "g-1") == granted
    with pytest.raises(AlreadyExists):
        await grant(replica, stopped.task_id, 501, CENT, "g-1")
    assert kinds(await replica.entries(stopped.task_id))[-2:] == ["operator_request", "COST_EXCEEDED>QUEUED"]
    again = await replica.claim(stopped.task_id)
    assert (await again.commit(reserve=reserve(step=2, model=OPUS))).reserve.HasField("granted")


async def test_a_granted_live_tree_does_not_end_for_lack_of_budget(
    replica: Checkpoint,
) -> None:
    owner = await replica.claim((await replica.create(limits=limits(tokens=100))).task_id)
    assert (await owner.commit(reserve=reserve(input_tokens=101))).reserve.denied.reason == "TOKEN_LIMIT"
    granted = await grant(replica, owner.task.task_id, tokens=900)
    assert (granted.state, granted.budget.max_tokens) == (task_pb2.TASK_STATE_RUNNING, 1000)
    end = pb.Transition(to_state=COST_EXCEEDED, reason="TOKEN_LIMIT", message="used up")
    with pytest.raises(WrongState) as refused:
        await owner.commit(transition=end)
    assert refused.value.reason == "UNREAD_GRANT"
    again = await replica.open(owner.token, owner.claims)
    assert (await again.commit(reserve=reserve(input_tokens=101))).reserve.HasField("granted")


async def test_a_senseless_grant_is_refused_without_a_change(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=limits(tokens=100))).task_id)
    senseless: list[dict[str, Any]] = [{"nano_usd": CENT}, {}, {"tokens": -1}]
    for extras in senseless:
        with pytest.raises(InvalidRequest):
            await grant(replica, owner.task.task_id, **extras)
    await owner.end()
    with pytest.raises(WrongState):
        await grant(replica, owner.task.task_id, tokens=1)
    assert (await replica.get(owner.task.task_id)).budget.max_tokens == 100


async def test_many_reservers_of_one_root_never_pass_its_cap_in_money(checkpoint: MakeCheckpoint) -> None:
    """The database itself refuses a moment beyond it, for the root and for each task's own."""
    replica = await checkpoint()
    root = await replica.create(limits=limits(4 * CENT))
    tasks = [root] + [await replica.create() for _ in range(11)]
    await replica.query("update ledger.tasks set root_task_id = %s, own_max_nano_usd = %s", root.task_id, CENT // 2)
    within = "check (max_nano_usd = 0 or used_nano_usd + reserved_nano_usd <= max_nano_usd)"
    await replica.query(f"alter table ledger.budgets add constraint within {within}")
    own = "check (used_nano_usd + model_nano_usd <= own_max_nano_usd)"
    await replica.query(f"alter table ledger.tasks add constraint within_own {own}")
    owners = [await replica.claim(task.task_id) for task in tasks]
    spent = await asyncio.gather(*[_spend(owner, index) for index, owner in enumerate(owners)])
    budget = (await replica.get(root.task_id)).budget
    assert 0 < budget.used_nano_usd == sum(spent) <= 4 * CENT
    billed = await replica.query(
        "select sum(nano_usd)::bigint from ledger.token_usage where tenant = %s", replica.tenant
    )
    assert (billed, budget.reserved_nano_usd) == ([(budget.used_nano_usd,)], 0)


async def _spend(owner: Any, index: Any) -> Any:
    spent = 0
    for step in range(1, 7):
        got = (await owner.commit(reserve=reserve(step=step, input_tokens=100, output=300, model=OPUS))).reserve
        if not got.HasField("granted"):
            assert got.denied.reason in {"MONEY_LIMIT", "BUDGET_BUSY"}
            continue
        tokens = got.granted.max_output_tokens * (index % 3 + 1) // 3
        await owner.commit(used(step, input_tokens=100, output_tokens=tokens))
        spent += 100 * INPUT + tokens * OUTPUT
    return spent


def _is(one: Any, kind: Any) -> Any:
    return one.body.WhichOneof("body") == kind
