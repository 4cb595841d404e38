"""Undo of a task that ordered, paid and sent a mail in a shop of another party, over sockets and processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import yaml

from devstack import Stack
from tenure import Client as PublicClient
from tenure import UndoVerdict
from tenure.client import Client
from tenure.domain.errors import TryLater, WrongState
from tenure.runtime.http.outbound_http import http_tls_context
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.shop import Shop

pytestmark = pytest.mark.faults
TOOLS = ("order", "pay", "mail")
HAPPENED = ["order tea", "pay 700", "mail thanks"]
UNDONE = ["refund 700 pay-2", "cancel_order order-1"]


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"text": tool, "calls": [{"name": tool, "arguments": arguments}]}


SHOPPING = [call("order", item="tea"), call("pay", cents=700), call("mail", text="thanks")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack_of_shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Stack, Shop]]:
    folder = tmp_path_factory.mktemp("shop")
    async with Shop() as shop:
        config = folder / "tools.yaml"
        config.write_text(yaml.safe_dump({"http_tools": shop.tools()}))
        chosen = options(folder, tools_config=config)
        (folder / "scenarios" / "shopping.yaml").write_text(yaml.safe_dump([*SHOPPING, {"text": "Done."}]))
        slow = [*SHOPPING, {"text": "I think.", "latency_ms": 60_000}]
        (folder / "scenarios" / "shopping-slowly.yaml").write_text(yaml.safe_dump(slow))
        async with Stack(chosen) as stack:
            yield stack, shop


@pytest_asyncio.fixture(loop_scope="module")
async def shopping(stack_of_shop: tuple[Stack, Shop]) -> AsyncIterator[tuple[Installation, Shop]]:
    stack, shop = stack_of_shop
    shop.forget()
    async with Client(stack.gateway_address) as client:
        yield Installation(stack, client), shop


async def shopped(install: Installation) -> str:
    task_id = await install.submit("sim-shopping", agent=task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist(names=TOOLS)))
    assert (await install.ended(task_id)).state == task_pb2.TASK_STATE_SUCCEEDED
    return task_id


@pytest.mark.asyncio(loop_scope="module")
async def test_command_undoes_in_reverse_and_only_once(shopping: tuple[Installation, Shop]) -> None:
    install, shop = shopping
    address, task_id = install.stack.gateway_address, await shopped(install)
    assert shop.effects == HAPPENED
    listed = await tenure("tasks", "undo", task_id, "--dry-run", address=address)
    assert listed.code == 0, listed.err
    lines = [line.split() for line in listed.out.splitlines()[1:]]
    assert [(line[0], line[1], line[2]) for line in lines] == [
        ("3.0", "mail", "NO_COMPENSATION"),
        ("2.0", "pay", "yes"),
        ("1.0", "order", "yes"),
    ]
    assert (await tenure("tasks", "undo", task_id, address=address)).code == 2, "a script says --yes"
    done = await tenure("tasks", "undo", task_id, "--yes", address=address)
    assert done.code == 0, done.err
    undone = await install.ended(done.out.strip())
    assert (undone.state, undone.reason, undone.undo_of) == (task_pb2.TASK_STATE_SUCCEEDED, "UNDONE", task_id)
    assert json.loads(undone.result) == {
        "task_id": task_id,
        "undone": ["2.0", "1.0"],
        "already_happened": [],
        "failed": [],
        "left": [],
    }
    assert shop.effects == HAPPENED + UNDONE
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=install.stack.http_url, timeout=CALL_SECONDS, trust_env=False
    ) as http:
        planned = (await http.get(f"/v1/tasks/{task_id}/undo", params={"since_step": 2})).json()
        assert [each["verdict"] for each in planned["effects"]] == ["NO_COMPENSATION", "UNDONE"]
        assert planned["effects"][1]["undo_task_id"] == undone.task_id
        refused = await http.post(f"/v1/tasks/{task_id}/undo", json={"plan_digest": planned["plan_digest"]})
        assert (refused.status_code, refused.json()["code"]) == (409, "NOTHING_TO_UNDO"), refused.text
    again = await tenure("tasks", "undo", task_id, "--yes", address=address)
    assert (again.code, shop.effects) == (3, HAPPENED + UNDONE), again.out
    shown = (await tenure("get", undone.task_id, address=address)).out.splitlines()
    assert ["undo", "of", task_id] in [line.split() for line in shown]
    assert f"(undoes {task_id}/2.0)" in (await tenure("tasks", "entries", undone.task_id, address=address)).out


@pytest.mark.asyncio(loop_scope="module")
async def test_failed_compensation_is_made_again_with_its_key(shopping: tuple[Installation, Shop]) -> None:
    install, shop = shopping
    task_id = await shopped(install)
    shop.fails.add("cancel_order")
    async with PublicClient(install.stack.gateway_address) as client:
        plan = await client.undo_plan(task_id)
        assert [effect.verdict for effect in plan.effects] == [
            UndoVerdict.NO_COMPENSATION,
            UndoVerdict.CAN_BE_UNDONE,
            UndoVerdict.CAN_BE_UNDONE,
        ]
        first = await client.undo(task_id, plan=plan)
        info = await first.wait()
        assert (info.state, info.reason) == ("FAILED", "UNDO_INCOMPLETE")
        assert json.loads(info.result)["failed"][0]["tool"] == "cancel_order"
        with pytest.raises(WrongState, match="no longer those"):
            await client.undo(task_id, plan=plan)
        shop.fails.clear()
        second = await client.undo(task_id)
        assert (await second.wait()).reason == "UNDONE"
    assert shop.effects == HAPPENED + UNDONE
    assert [key.rpartition("/")[0] for key in shop.keys["refund"]] == [f"{task_id}/2.0/undo"]


@pytest.mark.asyncio(loop_scope="module")
async def test_worker_killed_in_an_undo_refunds_once(shopping: tuple[Installation, Shop]) -> None:
    """The refund has happened, and its answer is on its way, when the worker dies."""
    install, shop = shopping
    task_id = await shopped(install)
    shop.holds.add("refund")
    done = await tenure("tasks", "undo", task_id, "--yes", address=install.stack.gateway_address)
    await shop.held.wait()
    worker = install.owner(await install.client.get(done.out.strip()))
    worker.kill()
    shop.let_go.set()
    undone = await install.ended(done.out.strip())
    assert (undone.reason, undone.claim_count) == ("UNDONE", 2)
    assert shop.effects == HAPPENED + UNDONE
    await worker.restart()


@pytest.mark.asyncio(loop_scope="module")
async def test_cancelled_task_with_the_policy_is_undone(shopping: tuple[Installation, Shop]) -> None:
    install, shop = shopping
    address = install.stack.gateway_address
    tools = ",".join((*TOOLS, "refund", "cancel_order"))
    submitted = await tenure(
        *("submit", "buy tea", "--model", "sim-shopping-slowly", "--tools", tools, "--on-failure", "undo"),
        address=address,
    )
    task_id = submitted.out.strip()
    await install.until(task_id, "tool_outcome", lambda entry: entry.body.tool_outcome.call_id == "3.0")
    await install.client.cancel(task_id)
    assert (await install.ended(task_id)).state == task_pb2.TASK_STATE_CANCELLED
    undone = await install.undo_of(task_id)
    assert (await install.ended(undone)).reason == "UNDONE"
    assert shop.effects == HAPPENED + UNDONE


@pytest.mark.faults
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    "failpoint",
    [
        "worker.after_open",
        "worker.after_intent",
        "worker.after_execute",
        "worker.before_close_out",
        "tools.before_effect",
        "tools.after_effect",
        "checkpoint.before_commit",
        "checkpoint.after_commit",
    ],
)
async def test_process_killed_at_each_step_of_an_undo(
    shopping: tuple[Installation, Shop], failpoint: str, step: int
) -> None:
    """Every compensation is KEYED: the shop sees one refund and one cancelled order, whoever died."""
    install, shop = shopping
    task_id = await shopped(install)
    kind = failpoint.partition(".")[0]
    armed = [service for name, service in install.stack.services.items() if name.partition("-")[0] == kind]
    for service in armed:
        await service.restart({"TENURE_FAILPOINTS": f"{failpoint}={step}#kill9"})
    try:
        undone = await install.client.undo(api.UndoTaskRequest(task_id=task_id, request_id=f"{failpoint}-{step}"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(service.exit_code is not None for service in armed):
                with suppress(TryLater, TimeoutError):  # of a ledger that is just killed
                    async with asyncio.timeout(1):
                        task = await install.client.get(undone.task_id)
                    if task.HasField("end_time"):
                        break  # the failpoint was not reached so often
                await asyncio.sleep(0.05)
    finally:
        for service in armed:
            await service.restart()
    ended = await install.ended(undone.task_id)
    assert (ended.reason, shop.effects) == ("UNDONE", HAPPENED + UNDONE), ended.message
