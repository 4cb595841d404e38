"""Answers to operators through the gateway, also while a service that they ask about is away."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tenure.domain.errors import InvalidRequest, NotFound, StaleEpoch, Unavailable, WrongState
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks
from tests.end_to_end.command import tenure
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, answer, reserve, words
from tests.support.fix_gateway import NOBODYS, TIMEOUT_SECONDS, Serve, StubOfTenant
from tests.support.fix_mcp import Configure, McpServers, definitions, offered, withdrawn
from tests.support.fix_tools import Grants, StartTools


async def test_refusals_of_ledger_and_tools_are_listed_together(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, gateway: Serve
) -> None:
    replica, tools = await checkpoint(), await tool_service()
    task_id = (await replica.create()).task_id
    stale = await replica.claim(task_id)
    await replica.claim(task_id)
    with pytest.raises(StaleEpoch):
        await stale.commit(words())
    await tools.fence(grants.claim(task_id, epoch=20))
    with pytest.raises(StaleEpoch):
        await tools.fence(grants.claim(task_id, epoch=10))
    stub = await gateway(replica.address, tools=tools.address)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        listed = await stub.admin.ListRefusals(api.ListRefusalsRequest(task_id=task_id))
        while not listed.ledger:  # the ledger writes its trail beside its answers
            listed = await stub.admin.ListRefusals(api.ListRefusalsRequest(task_id=task_id))
    assert [one.presented_epoch for one in listed.ledger] == [stale.claims.epoch]
    assert [(one.presented_epoch, one.current_epoch) for one in listed.tools] == [(10, 20)]


async def test_an_operator_accepts_held_tools(
    checkpoint: MakeCheckpoint,
    tool_service: StartTools,
    grants: Grants,
    gateway: Serve,
    mcp_servers: McpServers,
    tools_config: Configure,
    tmp_path: Path,
) -> None:
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path)))
    replica, tools, owner = await checkpoint(), await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__meta")
    await tools.outcome(owner, "1.0", "odd__redescribe", of="meta", description="Otherwise.")
    await withdrawn(tools, owner, "odd__meta")
    stub = await gateway(replica.address, tools=tools.address)

    shown = await tenure("tools", "sources", address=stub.process.address)
    unasked = await tenure("tools", "accept", "odd", address=stub.process.address)
    unknown = await tenure("tools", "accept", "odd", "look", "--yes", address=stub.process.address)
    assert "odd__meta" not in await definitions(tools, owner)
    accepted = await tenure("tools", "accept", "odd", "meta", "--yes", address=stub.process.address)

    for done in (shown, accepted):
        assert "the tool meta has changed since it was accepted, and is held:" in done.out
        assert re.search(r'^\+ +"Otherwise\."$', done.out, re.MULTILINE)
    assert "give --yes" in unasked.err
    assert unknown.err == "tenure: odd has no held tool look; `tenure tools sources` shows them\n"
    assert accepted.out.splitlines()[-1] == "accepted: meta"
    assert (await definitions(tools, owner))["odd__meta"].description == "Otherwise."
    seen = tool_pb2.SeenTool(name="meta", sha256="0" * 64)
    for wrong in ([], [tool_pb2.SeenTool(name="meta", sha256="x")], [seen, seen]):
        with pytest.raises(InvalidRequest):
            await stub.admin.AcceptTools(api.AcceptToolsRequest(name="odd", tools=wrong))
    with pytest.raises(WrongState):
        await stub.admin.AcceptTools(api.AcceptToolsRequest(name="odd", tools=[seen]))


async def test_the_command_sets_tries_and_deletes_a_rule(
    checkpoint: MakeCheckpoint, tool_service: StartTools, grants: Grants, gateway: Serve, tmp_path: Path
) -> None:
    replica, tools, owner = await checkpoint(), await tool_service(), grants.claim()
    await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    address = (await gateway(replica.address, tools=tools.address)).process.address
    file = tmp_path / "rules.toml"
    file.write_text('name = "no-x"\ntool = "append_*"\nwhen = "args.line == \'x\'"\nverdict = "deny"\n')
    tried = await tenure("tools", "rules", "try", str(file), address=address)
    assert tried.out.splitlines()[0] == "no-x: 0 allowed, 0 to approve, 1 denied"
    done = await tenure("tools", "rules", "set", str(file), address=address)
    assert done.out == "no-x: DENY append_* holds (version 1)\n"
    assert "args.line == 'x'" in (await tenure("tools", "rules", "list", address=address)).out
    denied = await tools.outcome(owner, "1.1", "append_record", file="a", line="x")
    assert denied.detail == "RULE_DENIED"
    file.write_text(file.read_text().replace("== 'x'", "== 7 +"))
    assert "Syntax error" in (await tenure("tools", "rules", "set", str(file), address=address)).err
    assert (await tenure("tools", "rules", "delete", "no-x", address=address)).out == "no-x is deleted\n"


async def test_refusals_of_another_tenants_task_are_not_found(
    replica: Checkpoint, shared_gateway: StubOfTenant
) -> None:
    task = await replica.create()
    mine, others = await shared_gateway(), await shared_gateway("somebody-else")
    for stub, task_id in ((mine, NOBODYS), (others, task.task_id)):
        with pytest.raises(NotFound):
            await stub.admin.ListRefusals(api.ListRefusalsRequest(task_id=task_id))


async def test_without_coordinators_or_tools_operators_must_retry(
    replica: Checkpoint, shared_gateway: StubOfTenant
) -> None:
    task = await replica.create()
    admin = (await shared_gateway()).admin
    for request in (
        admin.ListWorkers(api.ListWorkersRequest()),
        admin.ListClaims(api.ListClaimsRequest()),
        admin.ListRefusals(api.ListRefusalsRequest(task_id=task.task_id)),
    ):
        with pytest.raises(Unavailable) as refused:
            await request
        assert refused.value.retry_after_seconds
        assert "127.0.0.1" not in refused.value.message


async def test_explain_works_without_coordinators_and_tools(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    queued = (await replica.create()).task_id
    running = await replica.claim((await replica.create()).task_id)
    stub = await shared_gateway()
    explain_task = await stub.ExplainTask(tasks.ExplainTaskRequest(task_id=queued))
    assert "The workers are unknown, because no coordinator answers" in explain_task.lines
    text = "\n".join((await stub.ExplainTask(tasks.ExplainTaskRequest(task_id=running.task.task_id))).lines)
    assert "its lease is unknown" in text
    assert "Its refused writes are unknown" in text
    with pytest.raises(NotFound):
        await stub.ExplainTask(tasks.ExplainTaskRequest(task_id=NOBODYS))


async def test_a_queued_task_names_its_call_at_the_model_runner(
    replica: Checkpoint, shared_gateway: StubOfTenant
) -> None:
    task_id = (await replica.create()).task_id
    stub = await shared_gateway()

    async def explained() -> str:
        return "\n".join((await stub.ExplainTask(tasks.ExplainTaskRequest(task_id=task_id))).lines)

    owner = await replica.claim(task_id, joins=True)
    await owner.commit(reserve=reserve(outlives=True))
    await replica.requeue(owner)
    line = r"^Its model call of step 1 \(attempt 1, reserved \d+ s ago\) stays open at the model runner: the next owner"
    assert re.search(line, await explained(), re.MULTILINE)
    joiner = await replica.claim(task_id, joins=True)
    await joiner.commit(answer())
    await replica.requeue(joiner)
    assert "model call" not in await explained()
    direct = await replica.claim(task_id)
    await direct.commit(reserve=reserve(step=2))
    await replica.requeue(direct)
    assert "model call" not in await explained()


async def test_aging_tasks_are_listed_without_coordinators(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    stub = await shared_gateway()
    listed = await stub.admin.ListAgingTasks(api.ListAgingTasksRequest())
    assert ([one.task.task_id for one in listed.tasks], listed.leases_unknown) == ([owner.task.task_id], True)


async def test_a_transfer_needs_a_held_task_and_a_reason(replica: Checkpoint, shared_gateway: StubOfTenant) -> None:
    task_id = (await replica.create()).task_id
    admin = (await shared_gateway()).admin
    with pytest.raises(WrongState):
        await admin.TransferTask(api.TransferTaskRequest(task_id=task_id, reason="slow"))
    for call, request in (
        (admin.TransferTask, api.TransferTaskRequest(task_id=task_id)),
        (admin.RequeueTask, api.RequeueTaskRequest(task_id=task_id)),
        (admin.CloseOutTask, api.CloseOutTaskRequest(task_id=task_id, to_state=task_pb2.TASK_STATE_FAILED)),
        (admin.DrainWorker, api.DrainWorkerRequest(worker_id="w")),
    ):
        with pytest.raises(InvalidRequest, match="reason"):
            await call(request)
