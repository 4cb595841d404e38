"""Tasks carried out by workers, on real services: nothing repeated, nothing lost, and an end for everything."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from devstack.service_process import ServiceProcess
from services.worker.context_window import with_margin
from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import Limits, TaskPolicy
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.runtime.schema_checks import validate_in_child
from tenure.v1 import task_pb2
from tenure.wire.common import state_name
from tenure.wire.task import usage_to_domain
from tests.support import fix_own_tools as own_tools
from tests.support.fix_own_tools import REPEATABLE, Letters
from tests.support.fix_worker import WorkerBench
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first, one_of_each

COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
EFFECTS = sorted(f"{kind} {number}" for kind in ("keyed", "once") for number in (1, 2, 3))


async def the_answers_of_a_whole_run(bench: Any, task_id: Any) -> Any:
    """Each step was answered once, whatever happened meanwhile."""
    answered = [entry.step for entry in await bench.entries(task_id) if isinstance(entry.body, facts.AssistantMessage)]
    assert answered == sorted(set(answered))
    return answered


async def test_a_task_with_tools_goes_through(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-effects")
    task = await served.ended(task_id)
    assert (state_name(task.state), task.reason, task.result) == ("SUCCEEDED", "FINAL_ANSWER", "All is written.")
    assert sorted(await served.effects(task_id)) == EFFECTS
    assert await the_answers_of_a_whole_run(served, task_id) == [1, 2, 3, 4]
    assert len(served.model_calls(task_id)) == 4
    assert len(await served.bodies(task_id, facts.ToolsDefined)) == 1


async def test_allowed_tools_that_do_not_exist_are_in_the_ledger(served: WorkerBench) -> None:
    task_id = await served.submit("sim-one-tool", tools=("write_file", "wriet_file"))
    assert state_name((await served.ended(task_id)).state) == "SUCCEEDED"
    [defined] = await served.bodies(task_id, facts.ToolsDefined)
    assert [tool.name for tool in defined.tools] == ["write_file"]
    assert defined.unknown_names == ("wriet_file",)


async def test_the_ledgers_usage_is_the_simulators_bill(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-effects")
    used = usage_to_domain((await served.ended(task_id)).usage)
    calls = served.model_calls(task_id)
    billed = sum((TokenUsage(**{name: call[name] for name in COUNTS}) for call in calls), TokenUsage())
    assert used == billed


async def test_a_task_reads_its_earlier_prompt_from_the_cache(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-effects", tools=None)
    used = usage_to_domain((await served.ended(task_id)).usage)
    first, *later = served.model_calls(task_id)
    sent_before = sum(first[name] for name in COUNTS if name != "output_tokens")
    assert first["cache_creation_input_tokens"] + first["cache_read_input_tokens"] == sent_before > 1024
    for call in later:
        assert call["cache_read_input_tokens"] == sent_before
        assert call["input_tokens"] == 0
        sent_before += call["cache_creation_input_tokens"]
    assert used.cache_read_input_tokens > 0.6 * (used.total - used.output_tokens)


async def test_a_long_prompt_is_counted_by_the_provider_first(bench: WorkerBench) -> None:
    await bench.start_worker(count_tokens_above="0")
    task_id = await bench.submit("sim-worker-effects")
    await bench.ended(task_id)
    calls = bench.model_calls(task_id)
    inputs = [sum(call[name] for name in COUNTS if name != "output_tokens") for call in calls]
    reserved = [attempt.input_tokens for attempt in await bench.bodies(task_id, facts.ModelAttempt)]
    assert reserved == [with_margin(tokens) for tokens in inputs]


@pytest.mark.faults
async def test_failed_count_does_not_fail_the_step(bench: WorkerBench) -> None:
    bench.simulator.order_fault(endpoint="count_tokens", status=500, count=3)
    await bench.start_worker(count_tokens_above="0")
    task_id = await bench.submit("sim-worker-effects")
    assert state_name((await bench.ended(task_id)).state) == "SUCCEEDED"
    assert len(bench.model_calls(task_id)) == 4


@pytest.mark.faults
async def test_prompt_caching_can_be_turned_off(bench: WorkerBench) -> None:
    await bench.start_worker(prompt_caching="false")
    task_id = await bench.submit("sim-worker-effects", tools=None)
    used = usage_to_domain((await bench.ended(task_id)).usage)
    assert (used.cache_creation_input_tokens, used.cache_read_input_tokens) == (0, 0)
    assert used.input_tokens > 0


async def test_a_sandboxed_call_and_siblings_share_one_message(served: WorkerBench) -> None:
    task_id = await served.submit("sim-parallel-tools")
    assert (await served.ended(task_id)).result == "All three are done."
    outcomes = await served.bodies(task_id, facts.ToolOutcome)
    assert sorted(outcome.call_id for outcome in outcomes) == ["1.0", "1.1", "1.2"]
    assert len(served.model_calls(task_id)) == 2


async def test_many_tasks_go_through_one_worker_at_once(bench: WorkerBench) -> None:
    await bench.start_worker(slots="4")
    task_ids = [await bench.submit("sim-worker-paced") for _ in range(8)]
    ended = await asyncio.gather(*(bench.ended(task_id) for task_id in task_ids))
    assert {state_name(task.state) for task in ended} == {"SUCCEEDED"}


async def test_claim_is_released_when_its_task_ends(served: WorkerBench) -> None:
    task_id = await served.submit("sim-hello")
    await served.ended(task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await served.claims(task_id):
            await asyncio.sleep(0.02)


async def test_an_outcome_does_not_wait_long_for_a_slow_sibling(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-siblings")
    await served.ended(task_id)
    outcomes: list[Any] = [
        entry for entry in await served.entries(task_id) if isinstance(entry.body, facts.ToolOutcome)
    ]
    assert [entry.body.call_id for entry in outcomes] == ["1.0", "1.1"]
    attempts = [entry.sequence for entry in await served.entries(task_id) if isinstance(entry.body, facts.ModelAttempt)]
    assert outcomes[1].sequence < attempts[1]
    assert len(served.model_calls(task_id)) == 2


async def test_a_cut_answer_is_continued(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-cut")
    task = await served.ended(task_id)
    assert (state_name(task.state), task.result) == ("SUCCEEDED", "The first partand the second.")
    assert len(await served.bodies(task_id, facts.UserMessage)) == 1


async def test_an_answer_that_is_always_cut_fails_the_task(served: WorkerBench) -> None:
    task_id = await served.submit("sim-max-tokens", max_output_tokens=300)
    task = await served.ended(task_id)
    assert (state_name(task.state), task.reason) == ("FAILED", "MODEL_TRUNCATED")


@pytest.mark.parametrize(
    "fault", first([{"status": 429, "retry_after_seconds": 0.5}, {"status": 529}, {"broken_stream": 1}])
)
async def test_passing_provider_failure_costs_one_attempt(served: WorkerBench, fault: Any) -> None:
    served.simulator.order_fault(**fault, count=2)
    task_id = await served.submit("sim-hello")
    assert state_name((await served.ended(task_id)).state) == "SUCCEEDED"
    assert len(await served.bodies(task_id, facts.ModelFailure)) == 2
    assert [attempt.attempt_number for attempt in await served.bodies(task_id, facts.ModelAttempt)] == [1, 2, 3]
    assert len(served.model_calls(task_id)) == 3


async def test_refused_request_fails_the_task(served: WorkerBench) -> None:
    served.simulator.order_fault(status=400, message="that model is gone", count=10)
    task = await served.ended(await served.submit("sim-hello"))
    assert (state_name(task.state), task.reason) == ("FAILED", "MODEL_REJECTED")
    assert "that model is gone" in task.message


@pytest.mark.parametrize(
    ("fault", "calls", "reason"),
    one_of_each(
        [
            ({"status": 500, "count": 12}, 13, "MODEL_UNAVAILABLE"),
            ({"status": 401, "count": 3}, 4, "MODEL_ACCOUNT_REFUSED"),
            (
                {"status": 400, "message": "Your credit balance is too low to access the Anthropic API.", "count": 3},
                4,
                "MODEL_ACCOUNT_REFUSED",
            ),
        ]
    ),
)
async def test_outage_of_the_provider_or_its_account_ends_no_task(
    served: WorkerBench, fault: Any, calls: int, reason: str
) -> None:
    served.simulator.order_fault(**fault)
    policy = TaskPolicy(retry=RetryPolicy(max_attempts=1, initial_seconds=0.1, cap_seconds=0.1))
    task_id = await served.submit("sim-hello", policy=policy)
    assert state_name((await served.ended(task_id)).state) == "SUCCEEDED"
    scheduled = [move for move in await served.transitions(task_id) if move[0] is TaskState.RETRY_SCHEDULED]
    assert {moved for _, moved in scheduled} == {reason}
    assert len(served.model_calls(task_id)) == calls


async def test_step_limit_ends_a_task_with_its_last_text(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-endless", limits=Limits(max_steps=3))
    task = await served.ended(task_id)
    assert (state_name(task.state), task.reason, task.result) == ("COST_EXCEEDED", "STEP_LIMIT", "On and on.")
    assert len(served.model_calls(task_id)) == 3


async def test_the_token_limit_ends_a_task_and_is_never_overshot(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-endless", limits=Limits(max_tokens=9000))
    task = await served.ended(task_id)
    assert (state_name(task.state), task.reason, task.result) == ("COST_EXCEEDED", "TOKEN_LIMIT", "On and on.")
    assert 0 < usage_to_domain(task.usage).total <= 9000
    assert task.budget.reserved_tokens == 0


async def test_a_cancel_ends_a_model_call_at_once_and_bills_it(
    served: WorkerBench, shared_worker: ServiceProcess
) -> None:
    task_id = await served.submit("sim-worker-long-answer")
    await served.reached(task_id, facts.ModelAttempt)
    await served.speaking(task_id, shared_worker)
    asked_at = time.monotonic()
    await served.cancel(task_id)
    task = await served.ended(task_id)
    assert time.monotonic() - asked_at < 30  # the answer would take a minute
    assert (state_name(task.state), task.reason) == ("CANCELLED", "CANCEL_REQUESTED")
    assert task.budget.reserved_tokens == 0
    (call,) = served.model_calls(task_id)
    billed = sum(call[name] for name in COUNTS)
    assert abs(usage_to_domain(task.usage).total - billed) <= 0.05 * billed


async def test_live_text_is_the_text_of_the_answer(served: WorkerBench, shared_worker: ServiceProcess) -> None:
    task_id = await served.submit("sim-slow")
    await served.reached(task_id, facts.ModelAttempt)
    pieces = [piece async for piece in served.live_pieces(task_id, shared_worker)]
    assert "".join(piece.text for piece in pieces) == (await served.ended(task_id)).result
    assert len(pieces) > 5


async def test_a_cancel_during_a_call_writes_an_outcome(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-slow-tool")
    await served.reached(task_id, facts.ToolIntent)
    await served.cancel(task_id)
    task = await served.ended(task_id)
    assert state_name(task.state) == "CANCELLED"
    (outcome,) = await served.bodies(task_id, facts.ToolOutcome)
    assert outcome.outcome.status in {OutcomeStatus.CANCELLED, OutcomeStatus.NOT_RUN, OutcomeStatus.IN_DOUBT}


async def test_a_passed_deadline_ends_a_task_in_the_middle_of_a_call(served: WorkerBench) -> None:
    task_id = await served.submit("sim-worker-long-answer", limits=Limits(timeout_seconds=2))
    task = await served.ended(task_id)
    assert (state_name(task.state), task.reason) == ("TIMED_OUT", "DEADLINE_PASSED")
    assert task.budget.reserved_tokens == 0


async def test_message_during_the_last_answer_is_read(served: WorkerBench) -> None:
    task_id = await served.submit("sim-slow")
    await served.reached(task_id, facts.ModelAttempt)
    await served.tell(task_id, "One more thing.")
    task = await served.ended(task_id)
    assert state_name(task.state) == "SUCCEEDED"
    assert len(served.model_calls(task_id)) == 2


SCHEMA = json.dumps({"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]})


async def rejections_of(bench: Any, task_id: Any) -> Any:
    """The violations that the agent read, and at which step."""
    return [
        (entry.step, entry.body.violations)
        for entry in await bench.entries(task_id)
        if isinstance(entry.body, facts.ResultRejected)
    ]


async def test_invalid_result_is_corrected(served: WorkerBench) -> None:
    plain = await served.ended(await served.submit("sim-worker-shaped"))
    assert (plain.result, plain.result_json) == ("It costs three.", "")
    task_id = await served.submit("sim-worker-shaped", result_schema_json=SCHEMA)
    task = await served.ended(task_id)
    assert (state_name(task.state), task.reason, task.result_json) == ("SUCCEEDED", "FINAL_ANSWER", '{"price": 3}')
    assert task.result == '```json\n{"price": 3}\n```'
    first, second = await rejections_of(served, task_id)
    assert (first[0], "is not valid JSON" in first[1][0]) == (1, True)
    assert second == (2, ("$.price: 'three' is not of type 'integer'",))
    knows = (await served.bodies(task_id, facts.ModelAttempt))[0]
    knows_not = (await served.bodies(plain.task_id, facts.ModelAttempt))[0]
    assert knows.input_tokens > knows_not.input_tokens + len(SCHEMA) // 8


@pytest.mark.faults
async def test_crash_before_a_correction_repeats_no_call(bench: WorkerBench) -> None:
    """The answer is in the ledger: the successor judges it alike, and asks for the next one only."""
    victim = await bench.start_worker(failpoints="worker.before_correction=1#kill9")
    task_id = await bench.submit("sim-worker-shaped", result_schema_json=SCHEMA)
    assert await bench.died(victim) != 0
    assert await rejections_of(bench, task_id) == []
    await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.result_json) == ("SUCCEEDED", '{"price": 3}')
    assert [step for step, _ in await rejections_of(bench, task_id)] == [1, 2]
    answers = [entry.step for entry in await bench.entries(task_id) if isinstance(entry.body, facts.AssistantMessage)]
    assert (answers, len(bench.model_calls(task_id))) == ([1, 2, 3], 3)


async def test_an_endless_schema_check_is_abandoned() -> None:
    """A pattern with exponential backtracking: matched in the worker itself, it would stop all its tasks."""
    hostile = json.dumps({"type": "string", "pattern": "^(a+)+$"})
    judgement = await validate_in_child(hostile, json.dumps("a" * 60 + "!"), cpu_seconds=1)
    assert "in time" in judgement.violations[0]


CONTROL_MODULE = own_tools.MODULE


@pytest.fixture
def letters(served: WorkerBench, tmp_path: Path) -> Letters:
    return Letters(served, tmp_path)


async def test_own_tools_run_once_and_are_recorded(letters: Letters) -> None:
    letters.open_gate()
    task_id = await letters.submit([*REPEATABLE, "UNSAFE"])
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"] * 4
    assert {effect: letters.counts()[effect] for effect in EffectClass} == dict.fromkeys(EffectClass, 1)
    outcomes = await letters.bench.bodies(task_id, facts.ToolOutcome)
    assert sorted(outcome.call_id for outcome in outcomes) == ["1.0", "1.1", "1.2", "1.3"]
    assert letters.keys("UNSAFE") == {f"{task_id}/1.3"}


async def test_an_own_tool_waits_for_its_approval(letters: Letters) -> None:
    letters.open_gate()
    task_id = await letters.submit(["UNSAFE"], needs_approval=True)
    task = await letters.bench.in_state(task_id, TaskState.WAITING_USER)
    assert (task.wait.kind, task.wait.tool) == (task_pb2.WAIT_KIND_TOOL_APPROVAL, "write_unsafe")
    assert letters.lines() == []
    await letters.bench.answer(task, "allow")
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"]
    assert letters.counts()["UNSAFE"] == 1


@pytest.mark.parametrize(
    ("how", "effect", "begins"),
    one_of_each(
        [
            ("fail", "KEYED", "FAILED: write_keyed failed: ValueError: out of ink"),
            ("large", "KEYED", "FAILED: write_keyed returned 17000000 bytes, and may return 16777216"),
            ("unknown", "UNSAFE", "IN_DOUBT: It is not known whether this call happened: write_unsafe lost the answer"),
            ("unknown", "KEYED", "FAILED: write_keyed lost the answer to what it sent: the post office hung up."),
        ],
        kind=lambda case: case[1],
    ),
)
async def test_outcome_of_an_own_tool(letters: Letters, how: str, effect: str, begins: str) -> None:
    letters.open_gate()
    (result,) = await letters.result(await letters.submit([effect], how=how))
    assert result.startswith(begins)
    assert letters.counts()[effect] == 1


@pytest.mark.faults
@pytest.mark.parametrize(("effect", "status"), [("KEYED", "TIMED_OUT"), ("UNSAFE", "IN_DOUBT")])
async def test_an_own_tool_is_stopped_at_its_timeout(letters: Letters, effect: str, status: str) -> None:
    letters.open_gate()
    (result,) = await letters.result(await letters.submit([effect], how="sleep", timeout_seconds=0.5))
    assert result.startswith(status)
    # The worker stops the run. On a busy machine the service gives up before it hears of that, and asked it to stop.
    assert any(f"took longer than 0.5 s and was {how}" in result for how in ("stopped", "asked to stop")), result


async def test_a_name_of_the_tool_service_is_refused(letters: Letters) -> None:
    letters.open_gate()
    task_id = await letters.submit([], function="conflicting")
    task = await letters.bench.ended(task_id)
    assert json.loads(task.result) == "INVALID_ARGUMENTS: TOOL_NAME_TAKEN"
    assert letters.lines() == []
