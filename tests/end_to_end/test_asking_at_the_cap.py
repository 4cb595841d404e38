"""Tasks that ask for budget at a cap: granted and refused by commands, and a tree through kills of its parts."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tenure.cli.exit_codes import Exit
from tenure.domain.errors import TryLater, WrongState
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import ledger_pb2, task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_sub_agents import tree_of
from tests.end_to_end.test_tree_of_agents import check_audit, check_cap, died_and_back, within_its_cap
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
NANO_USD: Final = 10**9
NANO_USD_A_TOKEN: Final = 10**6
ASK: Final = task_pb2.TaskPolicy(on_budget=task_pb2.BUDGET_POLICY_ASK)
TEN_DOLLARS: Final = task_pb2.Limits(max_tokens=10**6, max_nano_usd=10 * NANO_USD)
AGENT: Final = task_pb2.AgentSpec(
    max_output_tokens=1000, tools=task_pb2.ToolAllowlist(names=["spawn_sub_agents", "append_record"])
)
MAX_OVER_NANO_USD: Final = NANO_USD // 10
SMALLEST_CALL: Final = 256 * NANO_USD_A_TOKEN
LARGEST_CALL: Final = 1000 * NANO_USD_A_TOKEN
DIES_AS_IT_ASKS: Final = {"TENURE_FAILPOINTS": "worker.before_close_out=1#kill9"}
SUCCEEDED, COST_EXCEEDED = task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_COST_EXCEEDED
TERMINAL: Final = frozenset({SUCCEEDED, COST_EXCEEDED, task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_CANCELLED})


async def submitted_at_31_cents(install: Installation) -> task_pb2.Task:
    limits = task_pb2.Limits(max_nano_usd=310 * NANO_USD_A_TOKEN)
    task_id = await install.submit("sim-e2e-priced", limits=limits, policy=ASK)
    return await install.in_state(task_id, "WAITING_USER")


@pytest.mark.faults
async def test_a_person_grants_budget_at_the_command_line(installation: Installation) -> None:
    address = installation.stack.gateway_address
    task = await submitted_at_31_cents(installation)
    wait = task.wait
    assert (task.reason, wait.budget_request.limit, wait.kind) == (
        "BUDGET_REQUESTED",
        "MONEY_LIMIT",
        task_pb2.WAIT_KIND_BUDGET,
    )
    assert wait.context.startswith("It is worth its price.")
    listed = await tenure("waits", address=address)
    assert (wait.wait_id in listed.out, "more budget" in listed.out) == (True, True)
    shown = await tenure("get", task.task_id, address=address)
    assert "MONEY_LIMIT" in shown.out
    assert "suggested" in shown.out
    explained = await tenure("explain", task.task_id, address=address)
    assert "tenure resume --tokens N --usd X" in explained.out
    answer = ("resume", task.task_id, "--wait", wait.wait_id)
    small = await tenure(*answer, "--usd", "0.01", address=address)
    assert (small.code, "too small" in small.err) == (Exit.REFUSED, True), small.err
    granted = await tenure(*answer, "--usd", "1", "--comment", "worth it", address=address)
    assert granted.code == Exit.OK, granted.err
    ended = await installation.ended(task.task_id)
    assert (ended.state, ended.attempt, ended.budget.max_nano_usd) == (SUCCEEDED, 1, 1310 * NANO_USD_A_TOKEN)
    watched = await tenure("watch", task.task_id, address=address)
    assert "$1.00 more (worth it)" in watched.out
    check_whole(await installation.entries(task.task_id))
    report = await tenure("admin", "verify", task.task_id, address=address)
    assert report.code == Exit.OK, report.out + report.err


async def test_a_refused_request_ends_with_the_partial_result(installation: Installation) -> None:
    task = await submitted_at_31_cents(installation)
    done = await tenure(
        "resume",
        task.task_id,
        "--wait",
        task.wait.wait_id,
        "--deny",
        "--comment",
        "too dear",
        address=installation.stack.gateway_address,
    )
    assert done.code == Exit.OK, done.err
    ended = await installation.ended(task.task_id)
    assert (ended.state, ended.reason) == (COST_EXCEEDED, "MONEY_LIMIT")
    assert ended.result.startswith("It is worth its price.")
    report = await tenure("admin", "verify", task.task_id, address=installation.stack.gateway_address)
    assert report.code == Exit.OK, report.out + report.err


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_a_tree_asks_at_10_dollars_and_survives_kills(own_installation: Installation) -> None:
    """Workers die in the middle of asking, and the checkpoint service in the middle of granting."""
    install = own_installation
    await asyncio.gather(*(worker.restart(DIES_AS_IT_ASKS) for worker in install.stack.workers))
    root = await install.submit(
        "sim-by-goal", f"spending {uuid.uuid4().hex[:8]}", agent=AGENT, limits=TEN_DOLLARS, policy=ASK
    )
    async with within_its_cap(install, root):
        await asyncio.gather(*(died_and_back(install, worker) for worker in install.stack.workers))
        asking = await all_asking(install, root, 8)
    await check_founding_numbers(install, root)

    checkpoint = install.stack.services["checkpoint"]
    await checkpoint.restart({"TENURE_FAILPOINTS": "checkpoint.after_foreign=1#kill9"})
    granted = asyncio.create_task(grant(install, asking[0], "once", 40 * NANO_USD))
    await install.died(checkpoint)
    await checkpoint.restart()
    await granted
    await grant(install, asking[0], "once", 40 * NANO_USD)
    assert (await install.client.get(root)).budget.max_nano_usd == 50 * NANO_USD

    await answer_until_the_end(install, root)
    tree = [await install.ended(one.task_id) for one in await tree_of(install, root)]
    assert [one.state for one in tree] == [SUCCEEDED] * 9
    check_cap(tree[0].budget)
    await check_audit(install, tree)


async def all_asking(install: Installation, root: str, count: int) -> list[task_pb2.Task]:
    """The sub-agents, once all of them wait for budget."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            tree = (await tree_of(install, root))[1:]
            if len(tree) == count and all(one.reason == "BUDGET_REQUESTED" for one in tree):
                return tree
            await asyncio.sleep(0.1)


async def check_founding_numbers(install: Installation, root: str) -> None:
    """They hold although workers died in the middle of asking. An answer that died with its worker counts as heard."""
    spent = await spent_by(install, root)
    spent.check_overshoot()
    spent.check_accounting()
    spent.check_alert()


@dataclass(frozen=True)
class Spent:
    """What a tree under TEN_DOLLARS used: by the ledger's budget, by the provider's bill, and its warnings.

    `unheard_nano_usd`: what the provider billed for answers that died with a worker, beyond what the worker had heard.
    """

    budget: task_pb2.BudgetStatus
    billed_nano_usd: int
    unheard_nano_usd: int
    warnings: list[ledger_pb2.BudgetWarning]

    def check_overshoot(self) -> None:
        """The tree has nothing left to use, and the provider bills less than ten cents above the cap."""
        cap, billed = self.budget.max_nano_usd, self.billed_nano_usd - self.unheard_nano_usd
        assert cap - SMALLEST_CALL <= self.budget.used_nano_usd <= cap
        assert billed - cap < MAX_OVER_NANO_USD, f"{billed} billed of {cap}"

    def check_accounting(self) -> None:
        """The ledger's total is within 1 % of the provider's bill, and no reservation is left."""
        used, billed = self.budget.used_nano_usd, self.billed_nano_usd - self.unheard_nano_usd
        assert abs(used - billed) <= 0.01 * billed, f"{used} counted, {billed} billed"
        assert self.budget.reserved_nano_usd == 0

    def check_alert(self) -> None:
        """One warning about the root's cap, with the call that took its use to 80 %."""
        [alert] = [one for one in self.warnings if one.limit == "MONEY_LIMIT" and not one.HasField("own")]
        least = 0.8 * self.budget.max_nano_usd
        assert least <= alert.budget.used_nano_usd < least + LARGEST_CALL


async def spent_by(install: Installation, root: str) -> Spent:
    tree = await tree_of(install, root)
    billed = {call["attempt"]: call["output_tokens"] for one in tree for call in install.model_calls(one.task_id)}
    entries = [(one.task_id, entry) for one in tree for entry in await install.entries(one.task_id)]
    lost = [
        (task_id, entry.step, entry.body.attempt_lost)
        for task_id, entry in entries
        if entry.body.HasField("attempt_lost")
    ]
    unheard = sum(
        billed.get(f"{task_id}/{step}/{call.attempt_number}", 0) - call.usage.output_tokens
        for task_id, step, call in lost
    )
    return Spent(
        budget=(await install.client.get(root)).budget,
        billed_nano_usd=sum(billed.values()) * NANO_USD_A_TOKEN,
        unheard_nano_usd=unheard * NANO_USD_A_TOKEN,
        warnings=[entry.body.budget_warning for _, entry in entries if entry.body.HasField("budget_warning")],
    )


async def grant(install: Installation, task: task_pb2.Task, request_id: str, nano_usd: int) -> None:
    """Answers as a patient person does: the same answer again while a service is away."""
    patient = RetryPolicy(max_attempts=100, initial_seconds=0.2, factor=1.0)
    await retrying(
        lambda: install.client.resume(
            task.task_id,
            task.wait.wait_id,
            decision="approve",
            extra_budget_nano_usd=nano_usd,
            request_id=f"{task.task_id[:8]}-{request_id}",
        ),
        patient,
        on=(TryLater, PeerFailed),
    )


async def answer_until_the_end(install: Installation, root: str) -> None:
    """Grants whatever sub-agents still ask for at their own caps."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await install.client.get(root)).state not in TERMINAL:
            for task in await tree_of(install, root):
                await approve_if_waiting(install, task)
            await asyncio.sleep(0.2)


async def approve_if_waiting(install: Installation, task: Any) -> None:
    """Another grant may have ended the wait meanwhile."""
    if task.reason != "BUDGET_REQUESTED" or not task.HasField("wait"):
        return
    with suppress(WrongState):
        await install.client.resume(
            task.task_id, task.wait.wait_id, decision="approve", extra_budget_nano_usd=4 * NANO_USD
        )
