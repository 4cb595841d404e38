"""Model calls that wait at the model runner, on real services: the claim shows it, and `explain` says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from devstack import StackOptions
from devstack.stack import Stack
from tenure.domain.states import TaskState
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1.admin_service_pb2_grpc import AdminServiceStub
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.fix_etcd import own_prefix
from tests.support.fix_postgres import MakeDatabase
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

LONG_SECONDS = 250
"""Longer than the test waits."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker_stack(
    tmp_path_factory: Any, new_database: MakeDatabase, worker_etcd: str, worker_simulator: SimulatorControl
) -> AsyncIterator[Stack]:
    """The bench's stack with a model runner."""
    provider = {"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": worker_simulator.url}
    options = StackOptions(
        data_dir=tmp_path_factory.mktemp("held-calls"),
        workers=0,
        model_runner=True,
        postgres_dsn=await new_database("held_calls"),
        etcd_endpoints=worker_etcd,
        environment={"coordinator": {"TENURE_COORDINATOR_ETCD_KEY_PREFIX": own_prefix()}, "models": provider},
    )
    async with Stack(options) as stack:
        yield stack


@pytest.mark.faults
async def test_call_that_waits_for_the_rate_limit_is_shown(bench: WorkerBench) -> None:
    """Its worker is well, and another one would join the same call: nobody should transfer the task."""
    await bench.start_worker()
    bench.simulator.order_fault(status=429, retry_after_seconds=LONG_SECONDS, count=1)
    await bench.in_state(await bench.submit("sim-hello"), TaskState.RETRY_SCHEDULED)
    task_id = await bench.submit("sim-hello")
    async with open_channel(bench.stack.gateway_address) as channel:
        admins: Any = AdminServiceStub(channel)
        claims: list[admin.Claim] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(claim.renewals.model_call_waits for claim in claims):
                listed = await admins.ListClaims(admin.ListClaimsRequest(task_id=task_id), timeout=CALL_SECONDS)
                claims = list(listed.claims)
        request = tasks.ExplainTaskRequest(task_id=task_id)
        stub: Any = TaskServiceStub(channel)
        text = "\n".join((await stub.ExplainTask(request, timeout=CALL_SECONDS)).lines)
    assert "waits at the model runner for the rate limit of its key: nothing was sent" in text
    assert "tenure admin transfer" not in text
    assert not bench.model_calls(task_id)
    await bench.cancel(task_id)
    await bench.ended(task_id)
