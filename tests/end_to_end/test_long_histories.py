"""Tasks whose conversation outgrows the model's window: cleared, summarised, taken over, forked, and never refused."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from checker.verify import examine
from devstack.service_process import ServiceProcess
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_verify import recorded

SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
WINDOW_TOKENS = 6000
TOOLS = ("read_file", "write_file")


def ways(entries: list[ledger_pb2.Entry]) -> list[str]:
    """How the conversation was made shorter, in order."""
    results = (entry.body.compaction for entry in entries if entry.body.HasField("compaction"))
    return [compaction.WhichOneof("how") or "" for compaction in results]


def check_calls(installation: Installation, task_id: str) -> dict[str, list[dict[str, Any]]]:
    """None was refused, none was beyond the window. Those of each step, in order."""
    by_step: dict[str, list[dict[str, Any]]] = {}
    for call in installation.model_calls(task_id):
        assert (call["status"], call["error"]) == (200, None)
        cached = int(call["cache_creation_input_tokens"]) + int(call["cache_read_input_tokens"])
        assert int(call["input_tokens"]) + cached + int(call["output_tokens"]) <= WINDOW_TOKENS
        by_step.setdefault(str(call["attempt"]).split("/")[1], []).append(call)
    return by_step


async def start_worker(installation: Installation, queue: str, failpoints: str = "") -> ServiceProcess:
    worker = installation.stack.add_worker({"TENURE_WORKER_QUEUES": queue, "TENURE_FAILPOINTS": failpoints})
    await worker.wait_ready()
    return worker


async def test_a_long_task_is_cleared_then_summarised(
    installation: Installation,
) -> None:
    """Its first owner dies with a summary that was paid for and not written down."""
    queue = f"long-{uuid.uuid4().hex[:8]}"
    doomed = await start_worker(installation, queue, "worker.after_model=8#kill9")
    agent = task_pb2.AgentSpec(
        context_window_tokens=WINDOW_TOKENS, max_output_tokens=800, tools=task_pb2.ToolAllowlist(names=TOOLS)
    )
    task_id = await installation.submit("sim-e2e-long", "read all facts", agent=agent, queue=queue)
    await installation.died(doomed)
    successor = await start_worker(installation, queue)
    try:
        task = await installation.ended(task_id)
        entries = await installation.entries(task_id)
        assert (task.state, task.claim_count) == (SUCCEEDED, 2)
        assert task.result.startswith("All is read.")
        check_whole(entries)
        result = ways(entries)
        assert result[0] == "cleared_results"
        assert "summary" in result
        check_repeated_summary(entries, check_calls(installation, task_id))
        await check_forks(installation, task_id, entries)
    finally:
        for worker in (doomed, successor):  # others find the installation as it was
            worker.kill()
            del installation.stack.services[worker.name]


def check_repeated_summary(entries: list[ledger_pb2.Entry], calls: dict[str, list[dict[str, Any]]]) -> None:
    """One call was lost, the first for a summary, and the successor asked for the very same."""
    (lost,) = [entry for entry in entries if entry.body.HasField("attempt_lost")]
    wanted = [entry.body.model_attempt for entry in entries if entry.step == lost.step][:1]
    assert wanted[0].summary_through_step > 0
    first, again = calls[str(lost.step)]
    assert first["prompt_hash"] == again["prompt_hash"]
    assert sum(map(len, calls.values())) == len(calls) + 1


async def check_forks(installation: Installation, task_id: str, entries: list[ledger_pb2.Entry]) -> None:
    """One goes on where the first summary was made, one after the end: both from the shorter conversation."""
    summary = next(entry for entry in entries if entry.body.compaction.WhichOneof("how") == "summary")
    after = await installation.client.fork(api.ForkTaskRequest(task_id=task_id, at_sequence=summary.sequence))
    request = api.ForkTaskRequest(task_id=task_id, message="and now?")
    continued = await installation.client.fork(request)
    for forked in (after.task_id, continued.task_id):
        assert (await installation.ended(forked)).state == SUCCEEDED
        check_whole(await installation.entries(forked))
        check_calls(installation, forked)
    results = [(await installation.client.get(one)).result for one in (task_id, after.task_id)]
    assert results == ["All is read. [turn 15]"] * 2
    assert "summary" in ways(await installation.entries(after.task_id))
    assert examine(await recorded(installation, task_id, after.task_id, continued.task_id)).violations == ()


@pytest.mark.faults
@pytest.mark.parametrize("window_tokens", [2900, 3000])
async def test_a_smaller_window_than_assumed_leads_to_a_summary(installation: Installation, window_tokens: int) -> None:
    """The worker does not know it before: the provider's refusal, or its answer that was cut off, is how it learns."""
    agent = task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist(names=TOOLS), max_output_tokens=800)
    task_id = await installation.submit(f"sim-steps-9-read_file-0ms-1600b-{window_tokens}w", "step on", agent=agent)
    task = await installation.ended(task_id)
    entries = await installation.entries(task_id)
    assert (task.state, task.result) == (SUCCEEDED, "All steps are done.")
    check_whole(entries)
    bodies = [entry.body for entry in entries]
    names = {*(body.model_failure.error_class for body in bodies), *(b.assistant_message.stop_reason for b in bodies)}
    assert names & {"PROMPT_TOO_LONG", "model_context_window_exceeded"}
    assert ways(entries) == ["summary"]
    assert examine(await recorded(installation, task_id)).violations == ()


@pytest.mark.faults
async def test_a_goal_beyond_the_window_fails_with_its_own_reason(installation: Installation) -> None:
    task = await installation.ended(await installation.submit("sim-steps-1-read_file-100w", "word " * 500))
    assert (task.state, task.reason) == (task_pb2.TASK_STATE_FAILED, "CONTEXT_WINDOW_EXCEEDED")


@pytest.mark.faults
async def test_an_output_beyond_the_window_is_read_in_parts(
    installation: Installation,
) -> None:
    agent = task_pb2.AgentSpec(
        context_window_tokens=4000,
        max_output_tokens=800,
        tools=task_pb2.ToolAllowlist(names=("execute_python", "read_file")),
    )
    task_id = await installation.submit("sim-e2e-long-output", agent=agent)
    task = await installation.ended(task_id)
    assert (task.state, task.result.splitlines()[0]) == (SUCCEEDED, "5678901234")
    entries = await installation.entries(task_id)
    first = next(entry.body.tool_outcome.outcome for entry in entries if entry.body.HasField("tool_outcome"))
    assert (first.truncated, first.output_path) == (True, "outputs/1.0.txt")
    assert len(first.content.encode()) < 4000
    assert examine(await recorded(installation, task_id)).violations == ()
