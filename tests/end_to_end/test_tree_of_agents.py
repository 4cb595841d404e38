"""A tree of 1 + 5 + 10 agents: whole although workers are killed, and never over a budget that is too small."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from checker.verify import examine
from devstack import ServiceProcess
from tenure.domain.errors import WrongState
from tenure.v1 import admin_service_pb2, ledger_pb2, task_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_sub_agents import tree_of
from tests.end_to_end.test_verify import recorded
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.faults]
NANO_USD_A_TOKEN: Final = 10**6
"""Of output, which is all that costs: what answers are billed stands in their scenarios."""
AGENT: Final = task_pb2.AgentSpec(
    max_output_tokens=1000, tools=task_pb2.ToolAllowlist(names=["spawn_sub_agents", "append_record"])
)
ENOUGH: Final = task_pb2.Limits(max_tokens=200_000, max_nano_usd=40_000 * NANO_USD_A_TOKEN)
"""Each leaf may use a third of what is left to its branch, that a sixth of what is left to the root: 2,000 of output,
of which it takes 600, and 300 more for each answer that is lost with a worker."""
TOO_LITTLE: Final = task_pb2.Limits(max_tokens=200_000, max_nano_usd=10_200 * NANO_USD_A_TOKEN)
"""Each leaf has 450: its first answer takes 300, and what is left is not worth another (256). The root has 4,500 left
for its reports, and wants 6,800."""
DIES_AT_ITS_FIRST_CALL: Final = {"TENURE_FAILPOINTS": "worker.after_intent=1#kill9"}
"""The call's intent, and the sub-agents that it is for, are in the ledger then; nothing else of it was done."""
POLL_SECONDS: Final = 0.1

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
CANCELLED = task_pb2.TASK_STATE_CANCELLED
COST_EXCEEDED = task_pb2.TASK_STATE_COST_EXCEEDED


async def test_a_tree_stays_whole_and_in_budget_despite_crashes(own_installation: Installation, tmp_path: Path) -> None:
    install, gate = own_installation, tmp_path / "gate"
    async with leaves_held(install, gate):
        await asyncio.gather(*(worker.restart(DIES_AT_ITS_FIRST_CALL) for worker in install.stack.workers))
        root = await install.submit("sim-by-goal", goal_of("tree"), agent=AGENT, limits=ENOUGH)
        async with within_its_cap(install, root):
            # The root's is gone right after it spawned; the other one then takes over, and dies at its first call.
            await asyncio.gather(*(died_and_back(install, worker) for worker in install.stack.workers))
            leaf = await at_work(install, await any_leaf(install, root))
            killed = install.owner(leaf)
            killed.kill()
            gate.touch()
            await killed.restart()
            ended = await install.ended(root)
    assert ended.state == SUCCEEDED, f"{ended.reason}: {ended.message}"
    tree = await whole_tree(install, root)
    assert {one.state for one in tree} == {SUCCEEDED}
    leaves = {one.task_id: one for one in tree if one.depth == 2}
    assert all(leaf.spec.goal in ended.result for leaf in leaves.values())  # which is what a leaf says
    assert sorted(effects(install, ended)) == sorted(one.spec.goal for one in leaves.values())
    assert leaves[leaf.task_id].claim_count >= 2
    assert ended.claim_count >= 3  # once more for the death after its spawn, once more after its wait
    check_settled(ended.budget)
    await check_audit(install, tree)


async def test_a_tree_without_budget_stops_and_ends_after_a_grant(
    installation: Installation,
) -> None:
    install = installation
    root = await install.submit("sim-by-goal", goal_of("dear-tree"), agent=AGENT, limits=TOO_LITTLE)
    async with within_its_cap(install, root):
        stopped = await install.ended(root)
    assert (stopped.state, stopped.reason) == (COST_EXCEEDED, "MONEY_LIMIT")
    tree = await whole_tree(install, root)
    ends = Counter((one.depth, one.state) for one in tree)
    assert ends == {(0, COST_EXCEEDED): 1, (1, SUCCEEDED): 5, (2, COST_EXCEEDED): 8, (2, CANCELLED): 2}
    # The late ones may be stopped when their parent has ended meanwhile, too.
    reasons = {one.reason for one in tree if one.state != SUCCEEDED}
    assert reasons <= {"MONEY_LIMIT", "NOT_AWAITED", "PARENT_ENDED"}
    assert len(effects(install, stopped)) == 8
    check_settled((await install.client.get(root)).budget)
    await check_audit(install, tree)

    async with within_its_cap(install, root):
        await install.client.admin.GrantBudget(
            admin_service_pb2.GrantBudgetRequest(
                task_id=root, reason="worth it", extra_nano_usd=10_000 * NANO_USD_A_TOKEN
            )
        )
        done = await install.ended(root)
    assert (done.state, done.attempt) == (SUCCEEDED, 2), f"{done.reason}: {done.message}"
    again = await whole_tree(install, root)
    assert [one.attempt for one in again] == [2] + [1] * 15
    check_settled(done.budget)
    await check_audit(install, again)
    with pytest.raises(WrongState):
        await install.client.admin.GrantBudget(
            admin_service_pb2.GrantBudgetRequest(task_id=again[-1].task_id, reason="too late", extra_tokens=1)
        )


def goal_of(scenario: str) -> str:
    """The goals of all below end with it."""
    return f"{scenario} {uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def leaves_held(install: Installation, gate: Path) -> AsyncIterator[None]:
    """No call of a tool comes to its effect before there is a file `gate`: leaves stay at work until then."""
    tools = install.stack.services["tools"]
    await tools.restart({"TENURE_FAILPOINTS": f"tools.after_accept=wait({gate})"})
    yield
    await tools.restart()


@asynccontextmanager
async def within_its_cap(install: Installation, root: str) -> AsyncIterator[None]:
    """No read shows more used and reserved than the root's caps allow."""

    async def ask() -> None:
        while True:
            check_cap((await install.client.get(root)).budget)
            await asyncio.sleep(POLL_SECONDS)

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(ask())
        try:
            yield
        finally:
            asking.cancel()


async def died_and_back(install: Installation, worker: ServiceProcess) -> None:
    await install.died(worker)
    await worker.restart()


async def any_leaf(install: Installation, root: str) -> str:
    """One of the ten, once all of them have asked for their tool and all agents above wait."""
    spawned = await install.until(root, "sub_agents_spawned")
    for above in (root, *spawned.body.sub_agents_spawned.task_ids):
        await install.in_state(above, "WAITING_EXTERNAL")
    leaves = [one.task_id for one in await tree_of(install, root) if one.depth == 2]
    for leaf in leaves:
        await install.until(leaf, "tool_intent")
    return leaves[0]


async def at_work(install: Installation, task_id: str) -> task_pb2.Task:
    """The task, while a worker holds it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (task := await install.client.get(task_id)).owner:
            await asyncio.sleep(POLL_SECONDS)
    return task


async def whole_tree(install: Installation, root: str) -> list[task_pb2.Task]:
    """All of it at its end: 1 + 5 + 10, each spawned once, and each parent told what those below it came to."""
    tree = [await install.ended(one.task_id) for one in await tree_of(install, root)]
    assert Counter(one.depth for one in tree) == {0: 1, 1: 5, 2: 10}
    for parent in tree:
        entries = await install.entries(parent.task_id)
        check_whole(entries)
        below = [one for one in tree if one.parent_task_id == parent.task_id]
        assert len(below) == (5, 2, 0)[parent.depth]
        check_spawned_once(entries, below)
        if below:
            check_tree_reported(entries, parent, below)
    return tree


def check_spawned_once(entries: list[ledger_pb2.Entry], below: list[task_pb2.Task]) -> None:
    spawned = [entry.body.sub_agents_spawned for entry in entries if entry.body.HasField("sub_agents_spawned")]
    assert len(spawned) == bool(below)
    assert sorted(task_id for one in spawned for task_id in one.task_ids) == sorted(one.task_id for one in below)


def check_tree_reported(entries: list[ledger_pb2.Entry], parent: task_pb2.Task, below: list[task_pb2.Task]) -> None:
    (response,) = [
        entry.body.tool_outcome.outcome.content
        for entry in entries
        if entry.body.HasField("tool_outcome") and entry.body.tool_outcome.call_id == below[0].spawn_call_id
    ]
    results = {one["task_id"]: one["result"] for one in json.loads(response)["sub_agents"]}
    others = {COST_EXCEEDED: "[cost_exceeded]", CANCELLED: "[timeout]"}
    assert results == {one.task_id: others.get(one.state, one.result) for one in below}
    assert parent.state != SUCCEEDED or parent.result == response


def effects(install: Installation, root: task_pb2.Task) -> list[str]:
    """What the leaves of this root did."""
    return [line for line in install.effects("leaves") if line.endswith(root.spec.goal)]


def check_cap(budget: task_pb2.BudgetStatus) -> None:
    assert budget.used_tokens + budget.reserved_tokens <= budget.max_tokens
    assert budget.used_nano_usd + budget.reserved_nano_usd <= budget.max_nano_usd


def check_settled(budget: task_pb2.BudgetStatus) -> None:
    check_cap(budget)
    assert (budget.reserved_tokens, budget.reserved_nano_usd) == (0, 0)


async def check_audit(install: Installation, tree: list[task_pb2.Task]) -> None:
    """No record breaks a rule, and all tasks have ended."""
    history = await recorded(install, *(one.task_id for one in tree))
    report = examine(replace(history, settled=True))
    assert report.violations == ()
    assert (report.tasks, report.unread) == (len(tree), 0)
    assert not {run.invariant for run in report.not_run} & {"I17", "I38", "I39"}
