"""What a task does is seen by a collector, when the usual variables name one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devstack import Stack
from tenure.client import Client
from tenure.v1 import task_pb2
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.fix_collector import Collector


async def test_claims_model_calls_tools_and_commits_are_spans(collector: Collector, tmp_path: Path) -> None:
    stack = Stack(options(tmp_path, workers=1, environment={"*": collector.environment}))
    async with stack, Client(stack.gateway_address) as client:
        installation = Installation(stack, client)
        task = await installation.ended(await installation.submit("sim-one-tool"))
        of_task: dict[str, Any] = {"tenure.task.id": task.task_id, "tenure.epoch": task.epoch}

        claim = await collector.span("claim", **of_task)
        assert (claim.service, claim.attributes["tenure.worker"]) == ("tenure-coordinator", "worker-1")
        opened = await collector.span("open", **of_task)
        closing = await collector.span("commit", **{**of_task, "tenure.sequence": task.sequence})
        assert {opened.service, closing.service} == {"tenure-worker"}
        batch = await collector.span("commit batch", service="tenure-checkpoint")
        assert batch.attributes["tenure.commits"] >= 1
        agent = await collector.span("invoke_agent messages", **of_task)
        assert agent.service == "tenure-worker"

        chats = [span for span in collector.spans if span.attributes.get("gen_ai.operation.name") == "chat"]
        assert len(chats) == len(installation.model_calls(task.task_id))
        call = {"gen_ai.tool.call.id": "1.0"}
        wanted = await collector.span("execute_tool write_file", service="tenure-worker", **call)
        run = await collector.span("execute_tool write_file", service="tenure-tools", **call)
        assert (run.trace_id, run.parent_id) == (wanted.trace_id, wanted.span_id)
        assert wanted.trace_id == agent.trace_id
        await check_links(installation, collector)
    assert {"tenure_grants_total", "tenure_batched_items_total", "tenure_tool_calls_total"} <= collector.metrics


async def check_links(installation: Installation, collector: Collector) -> None:
    """Each sub-agent has a trace of its own, linked to a span of its parent's that spawned it."""
    root = await installation.ended(await installation.submit("sim-by-goal", "team at work"))
    tree = installation.client.list_tasks(task_pb2.TaskFilter(root_task_id=root.task_id))
    below = [task.task_id async for task in tree if task.task_id != root.task_id]
    assert len(below) == 2
    spawning = await collector.span("invoke_agent messages", **{"tenure.task.id": root.task_id})
    for task_id in below:
        agent = await collector.span("invoke_agent messages", **{"tenure.task.id": task_id})
        [(trace_id, span_id)] = agent.links
        assert trace_id == spawning.trace_id != agent.trace_id
        assert span_id in {span.span_id for span in collector.spans if span.trace_id == trace_id}
