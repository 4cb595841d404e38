"""What a task does is seen by a collector, when the usual variables name one; after a crash, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from devstack import Stack
from tenure.client import Client
from tenure.domain.spans import attempt_span_id, call_span_id, trace_id
from tenure.runtime.request_context import within_trace
from tenure.v1 import task_pb2
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation, check_whole
from tests.support.fix_collector import Collector, ExportedSpan
from tests.support.patience import PATIENCE_SECONDS

HEADER: Final = f"00-{'a' * 32}-{'b' * 16}-01"
TASKS: Final = 3
ROUNDS: Final = 2


def named(collector: Collector, task_id: str, name: str) -> list[ExportedSpan]:
    return [
        span
        for span in collector.by_id.values()
        if span.name.startswith(name) and span.attributes.get("tenure.task.id") == task_id
    ]


async def complete(collector: Collector, task_id: str) -> None:
    """The span of a task comes after all others of it."""
    await collector.until(lambda: bool(named(collector, task_id, "invoke_agent")))


@pytest.mark.nightly
async def test_a_task_is_one_trace_with_its_sub_agents(collector: Collector, tmp_path: Path) -> None:
    stack = Stack(options(tmp_path, workers=1, environment={"*": collector.environment}))
    async with stack, Client(stack.gateway_address) as client:
        installation = Installation(stack, client)
        with within_trace(HEADER):
            task = await installation.ended(await installation.submit("sim-one-tool"))
        await complete(collector, task.task_id)
        [agent] = named(collector, task.task_id, "invoke_agent messages")
        [call] = named(collector, task.task_id, "execute_tool write_file")
        chats = named(collector, task.task_id, "chat ")
        assert (agent.span_id.hex(), agent.parent_id) == (attempt_span_id(task.task_id, 1), b"")
        assert agent.links == {(b"\xaa" * 16, b"\xbb" * 8)}
        assert call.span_id.hex() == call_span_id(task.task_id, "1.0")
        assert len(chats) == len(installation.model_calls(task.task_id))
        assert {one.trace_id.hex() for one in (agent, call, *chats)} == {trace_id(task.task_id)}
        assert {one.parent_id for one in (call, *chats)} == {agent.span_id}
        assert call.attributes["tenure.worker"] == "worker-1"
        await check_sub_agents(installation, collector)
    assert {"tenure_grants_total", "tenure_batched_items_total", "tenure_tool_calls_total"} <= collector.metrics


async def check_sub_agents(installation: Installation, collector: Collector) -> None:
    """Each is in the trace of its root, below the call that spawned it."""
    root = await installation.ended(await installation.submit("sim-by-goal", "team at work"))
    tree = installation.client.list_tasks(task_pb2.TaskFilter(root_task_id=root.task_id))
    below = [task async for task in tree if task.task_id != root.task_id]
    assert len(below) == 2
    for task in below:
        await complete(collector, task.task_id)
        [agent] = named(collector, task.task_id, "invoke_agent messages")
        assert agent.trace_id.hex() == trace_id(root.task_id)
        assert agent.parent_id.hex() == call_span_id(root.task_id, task.spawn_call_id)


@pytest.mark.faults
async def test_kills_lose_no_span(collector: Collector, tmp_path: Path) -> None:
    """Workers, replicas of the ledger within an export, and the collector die while tasks run."""
    replicas, environment = {"checkpoint": 2}, {"*": collector.environment}
    stack = Stack(options(tmp_path, workers=3, replicas=replicas, environment=environment))
    async with stack, Client(stack.gateway_address) as client:
        installation = Installation(stack, client)
        exporting = asyncio.Event()

        async def note_export() -> None:
            exporting.set()
            await asyncio.sleep(0.05)

        collector.on_export = note_export
        task_ids: list[str] = []
        for replica in ("checkpoint", "checkpoint-2") * ROUNDS:
            new = [await installation.submit("sim-e2e-keyed-paced", f"{len(task_ids)}-{n}") for n in range(TASKS)]
            task_ids += new
            owner = (await installation.until(new[0], "tool_intent")).actor
            await restarted(stack, owner)
            exporting.clear()
            task_ids.append(await installation.submit("sim-e2e-keyed-paced", f"late-{len(task_ids)}"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await exporting.wait()
            await restarted(stack, replica)
            await collector.stop()
            await collector.start()
        for task_id in task_ids:
            task = await installation.ended(task_id)
            assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
        for task_id in task_ids:
            await complete(collector, task_id)
            await check_all(installation, collector, task_id)
        takeovers = sum(span.events.count("tenure.takeover") for span in collector.by_id.values())
        assert takeovers, "no worker died while it had a task"


async def restarted(stack: Stack, name: str) -> None:
    stack.services[name].kill()
    await stack.services[name].restart()


async def check_all(installation: Installation, collector: Collector, task_id: str) -> None:
    """Every model call and every tool call of the ledger is there, once by id, in one trace."""
    entries = await installation.entries(task_id)
    check_whole(entries)
    attempts = sum(entry.body.HasField("model_attempt") for entry in entries)
    calls = {entry.body.tool_intent.call_id for entry in entries if entry.body.HasField("tool_intent")}
    assert len(named(collector, task_id, "chat ")) == attempts
    spans = named(collector, task_id, "execute_tool ")
    assert {span.span_id.hex() for span in spans} == {call_span_id(task_id, call_id) for call_id in calls}
    traces = {span.trace_id.hex() for span in collector.spans if span.attributes.get("tenure.task.id") == task_id}
    assert traces == {trace_id(task_id)}
