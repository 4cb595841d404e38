"""Webhooks on a whole installation: registered by the command, told of a task that waits, tried and repaired."""

from __future__ import annotations

import json

import pytest

from tenure.cli.exit_codes import Exit
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation
from tests.support.fix_webhooks import MakeReceiver, Reply

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


async def test_a_registered_endpoint_gets_the_wait_and_the_end(
    installation: Installation, webhook_receiver: MakeReceiver
) -> None:
    receiver = await webhook_receiver()
    made = await tenure(
        "webhooks", "create", "waiting", receiver.url, "--label", "hook=e2e", address=installation.stack.gateway_address
    )
    assert made.code == Exit.OK, made.err
    receiver.secrets = [made.out.strip()]
    task_id = await installation.submit("sim-question", labels={"hook": "e2e"})
    (waits,) = await receiver.until(1)
    assert (waits.type, waits.task_id, waits.valid) == ("task.waiting_user", task_id, 1)
    wait = waits.data["task"]["wait"]
    assert "Which colour" in json.dumps(wait)
    await installation.client.resume(task_id, wait["wait_id"], reply="blue")
    _, ended = await receiver.until(2)
    assert (ended.type, ended.task_id, ended.valid) == ("task.succeeded", task_id, 1)
    assert "blue" in ended.data["task"]["result"]
    assert len(receiver.came) == 2
    assert (await tenure("webhooks", "delete", "waiting", address=installation.stack.gateway_address)).code == Exit.OK


@pytest.mark.faults
async def test_the_cli_lists_replays_pauses_rotates_and_deletes(
    installation: Installation, webhook_receiver: MakeReceiver
) -> None:
    receiver = await webhook_receiver()
    receiver.answer = lambda _delivery: Reply(410)

    async def run(*arguments: str) -> Done:
        return await tenure("webhooks", *arguments, address=installation.stack.gateway_address)

    create = ("create", "desk", receiver.url, "--event", "task.suceeded")
    made = await run(*create)
    assert (made.code, made.out[:6]) == (Exit.OK, "whsec_")
    assert "no event type matches task.suceeded" in made.err
    assert (await run(*create)).code == Exit.REFUSED
    refused = await run("create", "inside", "http://10.0.0.1/")
    assert (refused.code, "public" in refused.err) == (Exit.REFUSED, True)

    delivery_id = (await run("test", "desk")).out.strip()
    await receiver.until_came(1)
    shown = await run("get", "desk")
    while "GONE" not in shown.out:
        shown = await run("get", "desk")
    receiver.answer = lambda _delivery: Reply()
    receiver.secrets = [(await run("rotate", "desk", "--overlap", "1h")).out.strip(), made.out.strip()]
    assert "desk is resumed" in (await run("resume", "desk")).out
    (test,) = await receiver.until(1)
    assert (test.webhook_id, test.valid) == (delivery_id, 2)

    listed = await run("list")
    assert "desk" in listed.out
    assert "ok" in listed.out
    assert delivery_id in (await run("deliveries", "desk")).out
    assert (await run("replay", "desk", delivery_id)).code == Exit.REFUSED
    assert (await run("replay", "desk", "--all")).out == "0 dead deliveries replayed\n"
    assert (await run("discard", "desk")).code == Exit.USAGE
    assert "moving" in (await run("pause", "desk", "--reason", "moving")).out
    assert (await run("delete", "desk")).code == Exit.OK
    gone = await run("get", "desk")
    assert (gone.code, gone.err) == (Exit.REFUSED, "tenure: webhook desk not found\n")
