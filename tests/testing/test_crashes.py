"""Workers of a test die, freeze and drain where the test says, and nothing happens twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tenure import InDoubtPolicy, OutcomeStatus, TaskPolicy, TaskState, ToolOutcomeEvent, TransitionEvent
from tenure.testing import POINTS, PointNotReached, Tenure, UnknownPoint, error, tool, turn
from tenure.testing.pytest_plugin import SharedStack
from tests.testing.functions import payments

pytestmark = pytest.mark.server
FUNCTIONS = "tests.testing.functions"
APPEND = tool("append_record", file="books", line="tea")


def test_a_worker_dies_between_intent_and_call(tenure: Tenure) -> None:
    tenure.model.script([APPEND, "Done."])
    worker = tenure.worker()
    task = tenure.submit("Refund order 7", tools=["append_record"])
    worker.kill(at="after intent 1.0")
    assert not worker.is_running
    assert tenure.effects("append_record") == 0
    tenure.worker()
    assert task.result().text == "Done."
    assert tenure.effects("append_record") == 1
    assert tenure.records("books") == ["tea"]


@pytest.mark.faults
@pytest.mark.parametrize(
    "at",
    [
        "after grant",
        "after open",
        "before model 1",
        "after model 1",
        "after intent 1.0",
        "after execute 1",
        "before outcome 1.0",
        "after outcome 1.0",
        "before model 2",
        "after model",
        "before close-out",
    ],
)
def test_no_crash_repeats_an_effect(tenure: Tenure, at: str) -> None:
    tenure.model.script([APPEND, "Done."])
    worker = tenure.worker()
    task = tenure.submit("Buy tea", tools=["append_record"])
    worker.kill(at=at)
    tenure.worker()
    assert task.result().text == "Done."
    assert tenure.records("books") == ["tea"]
    lost = [call for call in task.model_calls if call.ending == "LOST"]
    assert len(lost) == (
        at in {"before model 1", "after model 1", "before model 2", "after model", "after outcome 1.0"}
    )


@pytest.mark.faults
def test_the_point_is_where_it_says(tenure: Tenure) -> None:
    """The second worker dies at a point of its own, and the task is where the name of each point says."""
    tenure.model.script([APPEND, tool("append_record", file="books", line="milk"), "Done."])
    first = tenure.worker()
    task = tenure.submit("Buy tea and milk", tools=["append_record"])
    first.kill(at="after model 1")
    assert [call.ending for call in task.model_calls] in (["OPEN"], ["LOST"])
    assert len(tenure.model.requests) == 1
    second = tenure.worker()
    second.kill(at="after outcome 1.0")
    assert [e.call_id for e in task.entries() if isinstance(e, ToolOutcomeEvent)] == ["1.0"]
    third = tenure.worker()
    third.kill(at="after execute 2.0")
    assert tenure.records("books") == ["tea", "milk"]
    assert [e.call_id for e in task.entries() if isinstance(e, ToolOutcomeEvent)] == ["1.0"]
    tenure.worker()
    assert task.result().text == "Done."
    assert tenure.records("books") == ["tea", "milk"]


@pytest.mark.faults
def test_a_model_call_fails_and_the_worker_dies(tenure: Tenure) -> None:
    tenure.model.script([error(529, retry_after=0.01), "Done."])
    worker = tenure.worker()
    task = tenure.submit("Say done", tools=[])
    worker.kill(at="after failure 1")
    tenure.worker()
    assert task.result().text == "Done."
    assert [call.ending for call in task.model_calls] == ["FAILED", "ANSWERED"]


@pytest.mark.faults
def test_a_frozen_worker_wakes_too_late(tenure: Tenure) -> None:
    """Another worker makes its calls meanwhile, and the tool service and the ledger refuse those of the first."""
    tenure.model.script([tool("append_record_unsafe", file="books", line="tea"), "Done."])
    first = tenure.worker()
    task = tenure.submit("Buy tea", tools=["append_record_unsafe"])
    first.freeze(at="after intent 1.0")
    tenure.worker()
    assert task.result().text == "Done."
    first.wake()
    assert tenure.records("books") == ["tea"]
    assert tenure.effects("append_record_unsafe") == 1


def test_a_drained_worker_gives_its_task_back(tenure: Tenure) -> None:
    tenure.model.script([APPEND, "Done."])
    worker = tenure.worker()
    task = tenure.submit("Buy tea", tools=["append_record"])
    worker.drain(at="before model 2")
    drained = [entry.reason for entry in task.entries() if isinstance(entry, TransitionEvent)]
    assert drained[-1] == "WORKER_DRAINED", "the signal came at the point, not when the task had gone on"
    tenure.worker()
    assert task.result().text == "Done."
    assert tenure.records("books") == ["tea"]


def test_the_tool_service_is_killed_during_a_call(tenure: Tenure) -> None:
    """Its process is gone with the call that it was making, which the next process makes again."""
    tenure.model.script([tool("append_record", file="books", line="tea", delay_ms=20_000), "Done."])
    tenure.worker()
    task = tenure.submit("Buy tea", tools=["append_record"])
    task.wait_until(TaskState.RUNNING)
    while not tenure.effects("append_record"):
        time.sleep(0.02)
    tenure.stack.restart("tools")
    task.cancel()
    assert task.wait().state is TaskState.CANCELLED
    with pytest.raises(ValueError, match=r"'billing' is not a service of the stack; it has .*checkpoint"):
        tenure.stack.restart("billing")


def test_an_unknown_point_lists_the_points(tenure: Tenure) -> None:
    worker = tenure.worker()
    with pytest.raises(UnknownPoint, match="'after tea' is not a point") as raised:
        worker.kill(at="after tea")
    assert all(name in str(raised.value) for name in POINTS)
    with pytest.raises(UnknownPoint, match="'after open' has no number"):
        worker.kill(at="after open 1")
    with pytest.raises(UnknownPoint, match="the number is the step of a model call"):
        worker.kill(at="before model 1.0")
    assert worker.is_running


@pytest.mark.faults
def test_a_point_that_is_not_reached_tells_the_story(tenure: Tenure) -> None:
    tenure.model.script([turn("Hello.")])
    worker = tenure.worker()
    task = tenure.submit("Say hello", tools=[])
    with pytest.raises(PointNotReached, match=r"did not get there within 15 s(?s:.*)assistant_message 'Hello\.'"):
        worker.kill(at="after intent 1.0", timeout=15)  # in which a slow machine has the answer, too
    assert worker.is_running
    assert task.result().text == "Hello."


def test_a_worker_that_dies_before_the_point_is_reported(tenure: Tenure) -> None:
    tenure.model.script([APPEND, "Done."])
    worker = tenure.worker()
    tenure.submit("Buy tea", tools=["append_record"])
    worker.kill()
    with pytest.raises(PointNotReached, match="it ended with code -9"):
        worker.kill(at="after intent 1.0")


async def test_a_client_of_asyncio_and_a_point_armed_ahead(tenure: Tenure) -> None:
    """Tasks of other clients are not held: the point is armed before the submit."""
    tenure.model.script([APPEND, "Done."])
    worker = tenure.worker()
    worker.kill_later("after intent 1.0")
    async with tenure.client as client:
        task = await client.submit("Buy tea", tools=["append_record"])
        tenure.worker()
        assert await task.result(timeout=60) == "Done."
    assert not worker.is_running
    assert tenure.records("books") == ["tea"]


@pytest.mark.faults
def test_a_function_dies_after_a_step(tenure: Tenure, tmp_path: Path) -> None:
    """What a crash test is for: the function whose key is its own pays twice."""
    paid = {}
    for function in ("refund", "refund_with_a_random_key"):
        bank = tmp_path / function
        worker = tenure.worker(functions=FUNCTIONS)
        task = tenure.submit_function(function, {"bank": str(bank)})
        worker.kill(at="after step 1")
        tenure.worker(functions=FUNCTIONS).kill_later("after close-out")
        assert task.result().value == "paid"
        paid[function] = payments(bank)
    assert paid == {"refund": 1, "refund_with_a_random_key": 2}


@pytest.mark.faults
@pytest.mark.parametrize("at", ["after record 1", "after intent 2.0", "after outcome 2.0", "after step 3"])
def test_a_function_dies_anywhere(tenure: Tenure, at: str) -> None:
    worker = tenure.worker(functions=FUNCTIONS)
    task = tenure.submit_function("book", {"order": 7})
    worker.kill(at=at)
    tenure.worker(functions=FUNCTIONS)
    assert task.result().value == "booked"
    assert tenure.records("books") == ["order 7"]


@pytest.mark.faults
def test_a_task_in_doubt_counts_as_begun(tenure: Tenure) -> None:
    """An UNSAFE call whose tool service died: it may have happened, so it is not made again."""
    tenure.model.script([tool("append_record_unsafe", file="books", line="tea", delay_ms=20_000), "Done."])
    tenure.worker()
    policy = TaskPolicy(on_in_doubt=InDoubtPolicy.TELL_MODEL)
    task = tenure.submit("Buy tea", tools=["append_record_unsafe"], policy=policy)
    task.wait_until(TaskState.RUNNING)
    while not tenure.effects("append_record_unsafe"):
        time.sleep(0.02)
    tenure.stack.restart("tools")
    assert task.result().text == "Done."
    (outcome,) = [e for e in task.entries() if isinstance(e, ToolOutcomeEvent)]
    assert outcome.status is OutcomeStatus.IN_DOUBT
    assert tenure.effects("append_record_unsafe") == 1


@pytest.mark.faults
def test_a_service_that_stays_dead_is_started_for_the_next_test(tenure_stack: SharedStack) -> None:
    """Nothing of the stack is started anew but the service."""
    addresses = []
    for _ in range(2):
        with tenure_stack.session() as tenure:
            addresses.append(tenure.address)
            tenure.model.script(["Hello."])
            tenure.worker()
            assert tenure.submit("Say hello", tools=[]).result().text == "Hello."
            tenure.stack.kill("gateway")
    assert addresses[0] == addresses[1]


def test_a_task_that_runs_on_is_cancelled_at_the_end(tenure_stack: SharedStack) -> None:
    with tenure_stack.session() as tenure:
        tenure.model.script([tool("append_record", file="books", line="tea", delay_ms=25_000), "Done."])
        tenure.worker()
        task = tenure.submit("Buy tea", tools=["append_record"])
        task.wait_until(TaskState.RUNNING)
        tenure.submit("Nobody takes it", tools=[], queue="nobody")
    with tenure_stack.session() as tenure:
        assert tenure.tasks == []
        assert tenure.model.requests == []


@pytest.mark.faults
@pytest.mark.parametrize("at", ["before own-tool 1.0", "after own-tool 1.0", "after intent 1.0", "after execute 1.0"])
def test_an_own_tool_dies_with_its_worker(tenure: Tenure, tmp_path: Path, at: str) -> None:
    """Another worker runs it again with the key of the call: one payment, and one effect."""
    bank = tmp_path / "bank"
    worker = tenure.worker(functions=FUNCTIONS)
    task = tenure.submit_function("refund_by_tool", {"bank": str(bank)})
    worker.kill(at=at)
    tenure.worker(functions=FUNCTIONS)
    assert task.result().value == "SUCCEEDED"
    assert payments(bank) == 1
    assert tenure.effects("pay") == 1
