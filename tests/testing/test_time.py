"""Time that a test moves: everything that the ledger times is due at once, and nothing else has changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from tenure import PhaseTimeout, TaskPolicy, TaskState, TimeoutAction, Timeouts, TransitionEvent, WaitKind
from tenure.testing import Tenure, tool
from tenure.v1 import schedule_service_pb2 as schedules
from tenure.v1 import task_pb2

pytestmark = pytest.mark.server
EVENT = tool("wait_external", correlation_id="paid-7", timeout_seconds=7200, at_deadline="go_on")


@pytest.mark.faults
def test_a_wait_ends_at_its_deadline(tenure: Tenure) -> None:
    tenure.model.script([EVENT, "Nobody paid."])
    tenure.worker()
    task = tenure.submit("Wait for the payment", tools=["wait_external"])
    task.wait_until(TaskState.WAITING_EXTERNAL)
    tenure.advance("1h59m")
    assert task.state is TaskState.WAITING_EXTERNAL
    tenure.advance(timedelta(minutes=2))
    assert task.result().text == "Nobody paid."


@pytest.mark.faults
def test_a_task_starts_at_its_time(tenure: Tenure) -> None:
    """The clock was moved by the test before, and is right again."""
    tenure.model.script(["Good morning."])
    tenure.worker()
    assert abs(tenure.now() - datetime.now(UTC)) < timedelta(minutes=1)
    task = tenure.submit("Say good morning", tools=[], start_at=tenure.now() + timedelta(hours=8))
    assert task.state is TaskState.QUEUED
    tenure.advance("8h")
    assert task.result().text == "Good morning."
    assert task.info.created_at is not None


@pytest.mark.faults
def test_a_retry_is_due(tenure: Tenure, tmp_path: Path) -> None:
    tenure.worker(functions="tests.testing.functions")
    task = tenure.submit_function("invoices", {"folder": str(tmp_path)})
    task.wait_until(TaskState.RETRY_SCHEDULED)
    tmp_path.joinpath("invoice").touch()
    tenure.advance("59m")
    assert task.state is TaskState.RETRY_SCHEDULED
    tenure.advance("2m")
    assert task.result().value == ["invoice"]


@pytest.mark.faults
def test_a_phase_timeout_passes(tenure: Tenure) -> None:
    """No worker takes the task in time."""
    timeouts = Timeouts(queued=PhaseTimeout(3600.0, TimeoutAction.TIME_OUT))
    task = tenure.submit("Say hello", tools=[], policy=TaskPolicy(timeouts=timeouts))
    assert task.state is TaskState.QUEUED
    tenure.advance("1h")
    assert task.wait().state is TaskState.TIMED_OUT


async def test_a_schedule_is_due(tenure: Tenure) -> None:
    tenure.model.script(["The news."])
    tenure.worker()
    spec = task_pb2.TaskSpec(goal="Read the news")
    async with tenure.client as client:
        request = schedules.CreateScheduleRequest(name="morning", cron="0 7 * * *", spec=spec)
        await client.raw.schedules.CreateSchedule(request)
    tenure.advance("24h")
    (first,) = tenure.tasks
    assert first.result().text == "The news."
    tenure.advance("48h")
    assert len(tenure.tasks) >= 2, "each due time on the way is decided, and the first of them finds no other task"


@pytest.mark.faults
def test_every_time_of_the_ledger_moves(tenure: Tenure) -> None:
    """The defaults of columns too; and no function or trigger of the ledger takes the time from Postgres itself."""
    tenure.model.script(["Hello."])
    tenure.advance("3d")
    task = tenure.submit("Say hello", tools=[])
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    info = task.info
    assert info.created_at is not None
    assert info.created_at > tomorrow
    assert all(entry.recorded_at is not None and entry.recorded_at > tomorrow for entry in task.entries())
    (change,) = [entry for entry in task.entries() if isinstance(entry, TransitionEvent)]
    assert change.state is TaskState.QUEUED
    with psycopg.connect(tenure.stack._stack.postgres_dsn) as postgres:
        functions = postgres.execute(
            "select proname from pg_proc where pronamespace = 'ledger'::regnamespace"
            " and prosrc ~* '(now|_timestamp|timeofday)\\s*\\(|current_timestamp|localtimestamp'"
        ).fetchall()
        defaults = postgres.execute(
            "select distinct pg_get_expr(adbin, adrelid) from pg_attrdef"
            " where pg_get_expr(adbin, adrelid) ~ 'now|clock' and adrelid::regclass::text like 'ledger.%'"
        ).fetchall()
    assert functions == []
    assert {expression for (expression,) in defaults} <= {"test_clock.now()", "test_clock.clock_timestamp()"}
    assert defaults


def test_a_span_that_is_none_is_refused(tenure: Tenure) -> None:
    for wrong in ("2 hours", "h", "", 0, -5.0, timedelta(0)):
        with pytest.raises(ValueError, match="is not a span of time"):
            tenure.advance(wrong)


def test_a_person_is_late(tenure: Tenure) -> None:
    tenure.model.script([tool("request_approval", question="Refund?"), "Refunded."])
    tenure.worker()
    task = tenure.submit("Refund order 7", tools=["request_approval"])
    assert task.wait_until(TaskState.WAITING_USER).wait.kind is WaitKind.APPROVAL  # type: ignore[union-attr]
    tenure.advance("6h")
    assert task.state is TaskState.WAITING_USER
    task.approve()
    assert task.result().text == "Refunded."
