"""Tasks of a hostile provider, on real services: each ends in a typed way, its bill is right, and its history goes on.

TENURE_HOSTILE_TASKS says how many tasks run beside each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.checkpoint.commit.external_entries import MAX_ENTRIES as MAX_FOREIGN_ENTRIES
from tenure.domain import entries as facts
from tenure.domain.fold import fold
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason
from tenure.domain.task import TaskPolicy
from tenure.domain.tools import OutcomeStatus
from tenure.model_providers.stream import MAX_TOKENS
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.checkpoint_service import MAX_ENTRIES
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench
from tests.support.hostile_answers import call_of, stream_of, written
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.faults
TASKS = int(os.environ.get("TENURE_HOSTILE_TASKS", "24"))
AT_ONCE = TaskPolicy(retry=RetryPolicy(initial_seconds=0.05, cap_seconds=0.5))

TOOLS = ("write_file", "read_file", "list_files", "append_record", "append_record_unsafe")
TYPED_ENDS = {
    ("SUCCEEDED", Reason.FINAL_ANSWER),
    ("FAILED", Reason.MODEL_ANSWER_UNUSABLE),
    ("FAILED", Reason.MODEL_EMPTY_ANSWER),
    ("FAILED", Reason.MODEL_REJECTED),
    ("FAILED", Reason.MODEL_REFUSED),
    ("FAILED", Reason.MODEL_TRUNCATED),
    ("FAILED", Reason.CONTEXT_WINDOW_EXCEEDED),
    ("FAILED", Reason.NO_PROGRESS),
    ("COST_EXCEEDED", Reason.TOKEN_LIMIT),
    ("COST_EXCEEDED", Reason.MONEY_LIMIT),
}
COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def stream(*blocks: Any, stop_reason: str = "tool_use") -> Any:
    return b"".join(written(event) for event in stream_of(list(blocks), stop_reason))


def many_calls(count: Any) -> Any:
    path = json.dumps({"path": "."})
    return stream(*(call_of("list_files", path, f"toolu_{number}") for number in range(count)))


async def fork(bench: Any, task_id: Any, **fields: Any) -> Any:
    request = tasks_pb.ForkTaskRequest(
        request_id=str(uuid.uuid4()),
        task_id=task_id,
        actor="test",
        message="Say hello.",
        overrides=task_pb2.ForkOverrides(model="sim-hello"),
        **fields,
    )
    return (await bench.ledger.ForkTask(request, timeout=CALL_SECONDS)).task.task_id


async def its_bill_is_right(bench: Any, task: Any) -> None:
    """Nothing stays reserved, and what was used is the sum of its calls, each of which is settled."""
    bills = (await bench.ledger.ListBills(admin_pb.ListBillsRequest(task_id=task.task_id), timeout=CALL_SECONDS)).bills
    sums = {name: sum(getattr(bill.usage, name) for bill in bills) for name in COUNTS}
    assert sums == {name: getattr(task.usage, name) for name in COUNTS}
    assert task.budget.used_tokens == sum(sums.values())
    assert task.budget.reserved_tokens == task.budget.reserved_nano_usd == 0
    attempts = await bench.bodies(task.task_id, facts.ModelAttempt)
    assert len(bills) == len(attempts) <= len(bench.model_calls(task.task_id))
    assert all(0 <= getattr(bill.usage, name) <= MAX_TOKENS for bill in bills for name in COUNTS)


@pytest.mark.faults
async def test_each_task_of_a_hostile_provider_ends_typed(bench: WorkerBench) -> None:
    for _ in range(2):
        await bench.start_worker(slots="32")
    models = [f"sim-hostile-{seed}-worker-classes" for seed in range(TASKS)]
    submitted = [await bench.submit(model, policy=AT_ONCE, tools=TOOLS) for model in models]
    tasks = await asyncio.gather(*map(bench.ended, submitted))
    ends = Counter((state_name(task.state), task.reason) for task in tasks)
    print(*(f"{count:>5} {end}" for end, count in ends.most_common()), sep="\n")  # noqa: T201  with -s or a failure
    for model, task in zip(models, tasks, strict=True):
        assert (state_name(task.state), task.reason) in TYPED_ENDS, f"{model}: {task.reason} {task.message}"
        assert task.claim_count == 1, f"{model}: a worker died of it"
        await its_bill_is_right(bench, task)
        fold(await bench.entries(task.task_id))

        if task.reason == Reason.MODEL_REJECTED:
            refusing = bench.model_calls(task.task_id)[-1]
            assert refusing["fault"] == "hostile", f"{model}: its history was refused: {task.message}"

    forks = await asyncio.gather(*[bench.ended(await fork(bench, task_id)) for task_id in submitted])
    for model, forked in zip(models, forks, strict=True):
        assert state_name(forked.state) == "SUCCEEDED", f"the fork of {model}: {forked.reason} {forked.message}"


@pytest.mark.faults
async def test_half_a_surrogate_in_a_call_is_replaced(bench: WorkerBench) -> None:
    bench.simulator.order_answer(stream(call_of("write_file", '{"path": "a.txt", "content": "smile \\ud83d"}')))
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", tools=TOOLS)
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    [intent] = await bench.bodies(task_id, facts.ToolIntent)
    assert json.loads(intent.arguments_json)["content"] == "smile \ufffd"
    assert len(bench.model_calls(task_id)) == 2


@pytest.mark.faults
async def test_data_that_is_not_json_is_an_unusable_answer(bench: WorkerBench) -> None:
    bench.simulator.order_answer(b'event: message_start\ndata: {"type": "message_start", "mess\n\n')
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", tools=TOOLS)
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    [failure] = await bench.bodies(task_id, facts.ModelFailure)
    assert (failure.error_class, failure.retryable) == ("UNUSABLE_ANSWER", True)
    [attempt, _] = await bench.bodies(task_id, facts.ModelAttempt)
    assert failure.usage.input_tokens == attempt.input_tokens, "an input without a count is billed as reserved"


UNREADABLE = {
    "NaN": '{"path": NaN}',
    "cut": '{"path": "a.txt", "content": "x',
    "list": '["a.txt"]',
    "text": "write to a.txt",
    "twice": '{"path": "a.txt", "path": "b.txt"}',
}


@pytest.mark.parametrize("arguments", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_model_reads_that_its_arguments_are_not_json(bench: WorkerBench, arguments: str) -> None:
    """The answer is complete and paid for: it is not bought again, and its other calls run."""
    calls = [call_of("list_files", '{"path": "."}', "toolu_1"), call_of("write_file", arguments, "toolu_2")]
    bench.simulator.order_answer(stream(*calls))
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", tools=TOOLS)
    task = await bench.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    outcomes = {body.call_id: body.outcome for body in await bench.bodies(task_id, facts.ToolOutcome)}
    assert outcomes["1.0"].status is OutcomeStatus.SUCCEEDED
    assert outcomes["1.1"].status is OutcomeStatus.INVALID_ARGUMENTS
    assert "cannot be read as a JSON object" in outcomes["1.1"].content
    assert len(bench.model_calls(task_id)) == 2
    await its_bill_is_right(bench, task)


CUT = call_of("write_file", UNREADABLE["cut"], "toolu_2")
BESIDE_A_CALL_THAT_RUNS = call_of("write_file", '{"path": "b.txt", "content": "b"}', "toolu_1")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stream(CUT), Reason.MODEL_ANSWER_UNUSABLE),
        (stream(BESIDE_A_CALL_THAT_RUNS, CUT), Reason.MODEL_ANSWER_UNUSABLE),
        (stream(BESIDE_A_CALL_THAT_RUNS, CUT, stop_reason="max_tokens"), Reason.MODEL_TRUNCATED),
        (stream(stop_reason="end_turn"), Reason.MODEL_EMPTY_ANSWER),
    ],
    ids=["not json", "not json beside a call that runs", "cut off beside a call that runs", "empty"],
)
async def test_answer_that_cannot_be_used_is_bought_three_times(bench: WorkerBench, answer: bytes, reason: str) -> None:
    bench.simulator.order_answer(answer, count=9)
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", policy=AT_ONCE, tools=TOOLS)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason) == ("FAILED", reason)
    assert len(bench.model_calls(task_id)) == 3
    await its_bill_is_right(bench, task)


@pytest.mark.parametrize("tool", ["spawn_sub_agents", "record_output", "ask_user"])
async def test_unreadable_call_of_the_ledger_has_one_outcome(bench: WorkerBench, tool: str) -> None:
    """The ledger carries these calls out itself, but not one that the worker has settled."""
    bench.simulator.order_answer(stream(call_of(tool, '{"goals": ["a')))
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", tools=(*TOOLS, tool))
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    [settled] = await bench.bodies(task_id, facts.ToolOutcome)
    assert settled.outcome.status is OutcomeStatus.INVALID_ARGUMENTS
    assert "cannot be read" in settled.outcome.content


@pytest.mark.faults
async def test_as_many_calls_as_a_commit_holds_survive_a_crash(
    bench: WorkerBench,
) -> None:
    bench.simulator.order_answer(many_calls(MAX_ENTRIES - 1))
    victim = await bench.start_worker(failpoints="worker.after_intent=1#kill9")
    task_id = await bench.submit("sim-hello", tools=TOOLS)
    await bench.died(victim)
    await bench.start_worker()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    outcomes = await bench.bodies(task_id, facts.ToolOutcome)
    assert len({outcome.call_id for outcome in outcomes}) == len(outcomes) == MAX_ENTRIES - 1
    assert {outcome.outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
    assert len(bench.model_calls(task_id)) == 2


async def test_more_calls_than_one_commit_holds_are_never_begun(bench: WorkerBench) -> None:
    bench.simulator.order_answer(many_calls(MAX_ENTRIES), count=2)
    bench.simulator.order_answer(many_calls(1200), count=1)
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", policy=AT_ONCE, tools=TOOLS)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason, task.claim_count) == ("FAILED", "MODEL_ANSWER_UNUSABLE", 1)
    assert "ANSWER_TOO_LARGE" in task.message
    assert "1200 tool calls" in task.message
    assert await bench.bodies(task_id, facts.ToolIntent) == []
    await its_bill_is_right(bench, task)


@pytest.mark.faults
async def test_calls_with_one_id_are_two_calls(bench: WorkerBench) -> None:
    both = [call_of("list_files", '{"path": "."}', "toolu_same")] * 2
    bench.simulator.order_answer(stream(*both), count=2)
    await bench.start_worker()
    task_id = await bench.submit("sim-hello", tools=TOOLS)
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    intents = await bench.bodies(task_id, facts.ToolIntent)
    assert len({intent.tool_use_id for intent in intents}) == len(intents) == 4


@pytest.mark.faults
async def test_a_paid_answer_is_kept_beside_many_external_entries(bench: WorkerBench, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    await bench.start_worker(failpoints=f"worker.after_model=1#wait({go_on})")
    task_id = await bench.submit("sim-hello")
    await bench.reached(task_id, facts.ModelAttempt)
    for _ in range(MAX_FOREIGN_ENTRIES // 16 + 1):
        await asyncio.gather(*(bench.tell(task_id, "and") for _ in range(16)))
    go_on.touch()
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    assert await bench.bodies(task_id, facts.AttemptLost) == []
    assert len(bench.model_calls(task_id)) == len(await bench.bodies(task_id, facts.AssistantMessage)) == 2
