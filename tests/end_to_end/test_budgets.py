"""Budgets in money on a whole installation: warned of, reached, granted anew."""

from __future__ import annotations

import pytest

from tenure.v1 import task_pb2
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.support.fix_webhooks import MakeReceiver

pytestmark = pytest.mark.server
NANO_USD_A_TOKEN = 10**6
CAP = 310 * NANO_USD_A_TOKEN
"""The first answer and its call take more than 80 % of it, and leave too little for another."""


async def test_a_task_without_money_continues_after_a_grant(
    installation: Installation, webhook_receiver: MakeReceiver
) -> None:
    async def run(*arguments: str) -> Done:
        done = await tenure(*arguments, address=installation.stack.gateway_address)
        assert done.code == 0, done.err
        return done

    receiver = await webhook_receiver()
    wanted = ("--event", "task.budget_warning", "--label", "hook=budget")
    receiver.secrets = [(await run("webhooks", "create", "budget", receiver.url, *wanted)).out.strip()]
    task_id = await installation.submit(
        "sim-e2e-priced", limits=task_pb2.Limits(max_nano_usd=CAP), labels={"hook": "budget"}
    )
    stopped = await installation.ended(task_id)
    assert (stopped.state, stopped.reason) == (task_pb2.TASK_STATE_COST_EXCEEDED, "MONEY_LIMIT")
    assert stopped.result.startswith("It is worth its price.")
    spent = stopped.usage.output_tokens * NANO_USD_A_TOKEN
    assert 0.8 * CAP <= spent <= CAP
    assert (stopped.used_nano_usd, stopped.budget.used_nano_usd, stopped.budget.reserved_nano_usd) == (spent, spent, 0)
    (delivery,) = await receiver.until(1)
    assert (delivery.type, delivery.task_id, delivery.valid) == ("task.budget_warning", task_id, 1)
    [warning] = [entry for entry in await installation.entries(task_id) if entry.body.HasField("budget_warning")]
    assert (warning.body.budget_warning.limit, warning.actor) == ("MONEY_LIMIT", "checkpoint")
    assert "of $0.31" in (await run("get", task_id)).out

    granted = await run("admin", "grant-budget", task_id, "--reason", "worth it", "--dollars", "1")
    assert "and $1.31; now it is QUEUED" in granted.out
    ended = await installation.ended(task_id)
    assert (ended.state, ended.result, ended.attempt) == (task_pb2.TASK_STATE_SUCCEEDED, "That was it.", 2)
    entries = await installation.entries(task_id)
    check_whole(entries)
    assert sum(entry.body.HasField("budget_warning") for entry in entries) == 1
    await run("webhooks", "delete", "budget")
