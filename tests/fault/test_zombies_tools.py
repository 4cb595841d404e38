"""A worker frozen between its intents and its calls is taken over, woken, and made to repeat every call.

What counts is what happened outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenure.domain import entries as facts
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import token_pb2, tool_service_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.fault.test_zombies import check_done, logged, refused, stands_still, worker_stack
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

__all__ = ["worker_stack"]  # the fixture: leases short enough to outwait them

pytestmark = pytest.mark.server

CLASSES = {
    "2.0": ("read_file", EffectClass.PURE),
    "2.1": ("write_file", EffectClass.IDEMPOTENT),
    "2.2": ("append_record", EffectClass.KEYED),
    "2.3": ("append_record_unsafe", EffectClass.UNSAFE),
}


async def refused_calls(bench: WorkerBench, task_id: str, count: int) -> Sequence[token_pb2.RefusedWrite]:
    """What the tools refused, once it is so much."""
    request = tool_service_pb2.ListRefusedCallsRequest(task_id=task_id)
    async with open_channel(bench.stack.services["tools"].address) as tools, asyncio.timeout(PATIENCE_SECONDS):
        stub = ToolServiceStub(tools)
        while len(refused_calls := (await stub.ListRefusedCalls(request, timeout=CALL_SECONDS)).refused_calls) < count:
            await asyncio.sleep(0.05)
    return refused_calls


def written(bench: WorkerBench, task_id: str) -> tuple[int, int, str]:
    """The file that write_file wrote: each write makes it anew."""
    path: Path = bench.stack.layout.workspaces / "default" / task_id / "b.txt"
    return path.stat().st_ino, path.stat().st_mtime_ns, path.read_text()


@pytest.mark.faults
async def test_a_zombies_repeated_calls_have_no_second_effect(bench: WorkerBench) -> None:
    sleeper = await bench.start_worker(failpoints="worker.ignore_trust_window;worker.after_intent=2#freeze")
    task_id = await bench.submit("sim-worker-classes")
    await stands_still(sleeper)
    assert await bench.effects(task_id) == []
    await bench.start_worker()
    await check_done(bench, task_id, effects=["keyed", "once"], claims=2)
    (defined,) = await bench.bodies(task_id, facts.ToolsDefined)
    classes = {tool.name: tool.effect_class for tool in defined.tools}
    assert {name: classes[name] for name, _ in CLASSES.values()} == dict(CLASSES.values())
    intents = {body.call_id: body.tool for body in await bench.bodies(task_id, facts.ToolIntent)}
    assert {call_id: intents[call_id] for call_id in CLASSES} == {one: name for one, (name, _) in CLASSES.items()}
    outcomes = {body.call_id: body.outcome for body in await bench.bodies(task_id, facts.ToolOutcome)}
    assert {outcomes[call_id].status for call_id in CLASSES} == {OutcomeStatus.SUCCEEDED}
    assert {outcomes[call_id].call_attempt for call_id in CLASSES} == {1}
    whole, file = await bench.entries(task_id), written(bench, task_id)

    sleeper.wake()
    calls = await refused_calls(bench, task_id, len(CLASSES))
    assert {(one.method, one.holder) for one in calls} == {("Execute", sleeper.name)}
    assert all(one.presented_epoch < one.current_epoch for one in calls)
    await logged(sleeper, '"task left"')
    assert await refused(bench, task_id) == {(sleeper.name, "Commit")}
    assert sorted(await bench.effects(task_id)) == ["keyed", "once"]
    assert written(bench, task_id) == file
    assert await bench.entries(task_id) == whole
    assert len(calls) == len(CLASSES)
