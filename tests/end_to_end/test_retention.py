"""Ended tasks go by themselves, with everything of them but their bills, and what comes too late is refused."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from devstack import Stack
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.errors import NotFound, StaleEpoch
from tenure.domain.fencing import Claims
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import Signer
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import tool_service_pb2 as tools
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.token import sign_task_claims
from tests.end_to_end.command import tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

KEPT_SECONDS = 1.0


@pytest.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[Installation]:
    """Keeps ended tasks for a second."""
    kept = {"TENURE_CHECKPOINT_TASK_RETENTION_SECONDS": str(KEPT_SECONDS)}
    async with (
        Stack(options(tmp_path, environment={"checkpoint": kept})) as stack,
        Client(stack.gateway_address) as client,
    ):
        yield Installation(stack, client)


async def pruned(client: Client, task_id: str) -> NotFound:
    """What is said of it once it is."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await client.get(task_id)
            except NotFound as error:
                return error
            await asyncio.sleep(0.05)


async def left_of(install: Installation, task_id: str) -> list[Any]:
    """Rows of the ledger and of the tools, besides what is to stay."""
    async with await psycopg.AsyncConnection.connect(install.stack.postgres_dsn) as postgres:
        cursor = await postgres.execute(
            "select (select count(*) from ledger.entries where task_id = %(task_id)s),"
            " (select count(*) from ledger.budgets where root_task_id = %(task_id)s),"
            " (select count(*) from tools.calls where task_id = %(task_id)s),"
            " (select count(*) from ledger.prunings where task_id = %(task_id)s and forgotten_at is null)",
            {"task_id": task_id},
        )
        return list(await cursor.fetchone() or ())


@pytest.mark.faults
async def test_a_pruned_task_loses_calls_files_and_its_zombie(forgetful: Installation) -> None:
    client, stack = forgetful.client, forgetful.stack
    agent = task_pb2.AgentSpec(approve_tools=["read_file"])
    task_id = await forgetful.submit("sim-e2e-pure", agent=agent)
    waiting = await forgetful.in_state(task_id, "WAITING_USER")
    workspace = stack.layout.workspaces / "default" / task_id
    assert (workspace / "a.txt").exists()
    claim = next(entry for entry in reversed(await forgetful.entries(task_id)) if entry.epoch)
    wait = waiting.wait
    await client.resume(task_id, wait.wait_id, decision="allow", call_digest=wait.call_digest)
    error = await pruned(client, task_id)
    assert (error.reason, "ended tasks are kept for 1 s" in error.message) == ("TASK_PRUNED", True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(await left_of(forgetful, task_id)) or workspace.exists():
            await asyncio.sleep(0.05)
    assert [bill async for bill in client.bills(task_id)], "the bills stay"
    await check_refused(stack, task_id, claim.epoch, claim.claim_id)
    response = await tenure("get", task_id, address=stack.gateway_address)
    assert (response.code != 0, "was pruned on" in response.err) == (True, True)


async def check_refused(stack: Stack, task_id: str, epoch: int, claim_id: str) -> None:
    """A worker that was frozen since before the end shows its old token once everything is gone."""
    claims = Claims(f"tasks/{task_id}", "default", epoch, claim_id, "zombie", installation=DEFAULT_INSTALLATION)
    token = sign_task_claims(Signer.load(stack.layout.signing_key), claims, datetime.now(UTC))
    async with open_channel(stack.replicas("tools")[0].address) as channel:
        call = tools.ExecuteRequest(token=token, call_id="9.0", tool="list_files", arguments_json="{}")
        with pytest.raises(StaleEpoch):
            [event async for event in ToolServiceStub(channel).Execute(call, timeout=PATIENCE_SECONDS)]
    async with open_channel(stack.replicas("checkpoint")[0].address) as channel:
        commit = pb.CommitRequest(
            token=token,
            commit_id=str(uuid.uuid4()),
            commit_number=99,
            transition=pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="X"),
        )
        with pytest.raises(NotFound):
            await CheckpointServiceStub(channel).Commit(commit, timeout=PATIENCE_SECONDS)
