"""A result schema that takes long to compile stops no other call, of gateway or ledger."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceStub
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import Serve
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.faults
WIDE_CLASS = "[!-\uffff]"
CALLS = 60
MAX_SLOWER = 20
"""Times the mean of the same call without the attack. One frozen event loop makes it hundreds of times."""
UNDISTURBED_SECONDS = 0.5
"""A mean that only other processes of the machine explain: a frozen event loop costs each call seconds."""


def hostile(name: str, *, classes: int, patterns: int) -> str:
    pattern = f"(?i){name}{WIDE_CLASS * classes}"
    return json.dumps({"anyOf": [{"pattern": pattern + "x" * n} for n in range(patterns)]}, ensure_ascii=False)


async def mean_seconds(stub: Any, task_id: str) -> float:
    """Of a call by a tenant who has nothing to do with the attack."""
    began = time.perf_counter()
    for _ in range(CALLS):
        await stub.GetTask(api.GetTaskRequest(task_id=task_id), timeout=CALL_SECONDS)
    return (time.perf_counter() - began) / CALLS


async def submit_to_gateway(stub: Any, schema: str) -> None:
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="g", result_schema_json=schema))
    await stub.SubmitTask(request, timeout=CALL_SECONDS)


async def refused_field(call: Awaitable[Any]) -> str:
    """The field for which a call is refused, or ""."""
    try:
        await call
    except InvalidRequest as error:
        return str(error.violations[0].field)
    return ""


@pytest.mark.parametrize(
    ("through", "classes", "patterns"),
    [
        pytest.param("gateway", 140, 4, id="gateway, within all sizes"),
        pytest.param("ledger", 140, 4, id="ledger, within all sizes"),
        pytest.param("gateway", 2200, 1, id="gateway, too long"),
        pytest.param("ledger", 2200, 1, id="ledger, too long"),
    ],
)
async def test_a_hostile_schema_is_refused_and_delays_no_other_tenant(
    checkpoint: MakeCheckpoint, gateway: Serve, through: str, classes: int, patterns: int
) -> None:
    replica = await checkpoint()
    task = await replica.create()
    stub, enough = await gateway(replica.address), asyncio.Event()
    attacker = open_channel(stub.process.address, default_timeout_seconds=CALL_SECONDS, tenant="attacker")
    usual = await mean_seconds(stub, task.task_id)

    async def attack(name: str) -> int:
        """Submits one schema after the other, each of which is new. A fast machine can check the shorter ones."""
        submitted = 0
        while not submitted or not enough.is_set():
            schema = hostile(f"{name}{submitted}", classes=classes, patterns=patterns)
            if through == "ledger":
                call: Awaitable[Any] = replica.create(result_schema_json=schema)
            else:
                call = submit_to_gateway(TaskServiceStub(attacker), schema)
            field = await refused_field(call)
            assert field.endswith("result_schema_json") or (not field and patterns > 1), field
            submitted += 1
        return submitted

    async with attacker:
        attacks = [asyncio.ensure_future(attack(name)) for name in "abc"]
        attacked = await mean_seconds(stub, task.task_id)
        enough.set()
        assert min(await asyncio.gather(*attacks)) >= 1
    assert attacked < max(MAX_SLOWER * usual, UNDISTURBED_SECONDS), (
        f"{attacked:.3f} s a call, {usual:.3f} s without the attack"
    )
