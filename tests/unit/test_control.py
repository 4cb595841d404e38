"""Control work's rules: what the record answers, and what follows a failure."""

from __future__ import annotations

import asyncio
import math

import pytest

from services.worker.control.function_run import FunctionRun, FunctionWork, Raised
from tenure.control import StepFailed, TryAgain
from tenure.control.failures import failure_of
from tenure.domain.control import (
    MAX_RETRY_SECONDS,
    MESSAGES,
    Diverged,
    FunctionToolCall,
    after_function_failure,
    check_end,
    has_interruption,
    messages_at,
    missing_calls,
    recorded_step,
    step_limit,
)
from tenure.domain.entries import (
    Body,
    ControlFailure,
    ControlStep,
    Entry,
    Forked,
    OperatorRequest,
    Requeue,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
    UserMessage,
)
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TaskState
from tenure.domain.task import ControlWork, Limits, TaskSpec, offered_function
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.wire.ledger import new_entry
from tests.support.patience import PATIENCE_SECONDS

SPEC = TaskSpec(goal="", limits=Limits(max_steps=3), control=ControlWork("month_end"))
QUEUED = Transition(TaskState.QUEUED, "SUBMITTED")
DONE = Outcome(OutcomeStatus.SUCCEEDED, "done")


def after(*facts: tuple[int, Body]) -> ResumePoint:
    begin: list[tuple[int, Body]] = [(0, Submitted(SPEC)), (0, QUEUED)]
    return fold(Entry(sequence, *fact) for sequence, fact in enumerate([*begin, *facts], 1))


def called(step: int, *tools: str) -> list[tuple[int, Body]]:
    intents = [(step, ToolIntent(f"{step}.{index}", "", tool, "{}")) for index, tool in enumerate(tools)]
    return [*intents, *((step, ToolOutcome(f"{step}.{index}", DONE)) for index in range(len(tools)))]


def test_a_recorded_step_is_answered_and_a_new_one_is_made() -> None:
    point = after((1, ControlStep("count", "3")))
    recorded = recorded_step(point, 1, "count")
    assert recorded is not None
    assert recorded.result_json == "3"
    assert recorded_step(point, 2, "next") is None


@pytest.mark.parametrize(
    ("point", "step", "name"),
    [
        (after((1, ControlStep("count", "3"))), 1, "sum"),
        (after(*called(1, "pay")), 1, "count"),
    ],
    ids=["another name", "a call stands there"],
)
def test_another_step_than_the_recorded_one_is_a_divergence(point: ResumePoint, step: int, name: str) -> None:
    with pytest.raises(Diverged):
        recorded_step(point, step, name)


def test_calls_are_written_once_across_a_cut_commit() -> None:
    calls = [FunctionToolCall("pay", "{}"), FunctionToolCall("tell", "{}")]
    assert [intent.call_id for intent in missing_calls(after(), 1, calls)] == ["1.0", "1.1"]
    assert [intent.call_id for intent in missing_calls(after((1, ToolIntent("1.0", "", "pay", "{}"))), 1, calls)] == [
        "1.1"
    ]
    assert missing_calls(after(*called(1, "pay", "tell")), 1, calls) == []


@pytest.mark.parametrize(
    "point",
    [
        after(*called(1, "tell")),
        after((1, ToolIntent("1.0", "", "pay", '{"sum":2}'))),
        after(*called(1, "pay", "tell")),
        after((1, ControlStep("count", "3"))),
        after((1, ControlStep("count", "3")), (2, ControlStep("sum", "3"))),
    ],
    ids=["another tool", "other arguments", "more calls", "a step", "a step, and one more"],
)
def test_other_calls_than_the_recorded_ones_are_a_divergence(point: ResumePoint) -> None:
    with pytest.raises(Diverged):
        missing_calls(point, 1, [FunctionToolCall("pay", "{}")])


def test_a_function_that_returns_early_has_diverged() -> None:
    point = after((1, ControlStep("count", "3")))
    check_end(point, 1)
    with pytest.raises(Diverged):
        check_end(point, 0)


def test_messages_are_read_at_the_same_step_in_each_execution() -> None:
    """By number: a fork has the messages at other sequences."""
    a, b, c = map(UserMessage, "abc")
    told: list[tuple[int, Body]] = [(0, a), (1, ControlStep("count", "3")), (1, b)]
    assert messages_at(after(*told), 1) == []
    assert messages_at(after(*told), 2) == [a, b]
    read = [*told, (2, ControlStep(MESSAGES, "2")), (2, c)]
    assert [messages_at(after(*read), step) for step in (1, 2, 3)] == [[], [a, b], [c]]
    rest = [*read, (3, ControlStep("count", "4")), (4, ControlStep(MESSAGES, "3"))]
    assert [messages_at(after(*rest), step) for step in (2, 3, 4, 5)] == [[a, b], [], [c], []]


def test_a_message_interrupts_an_agent_until_it_is_read() -> None:
    stop, later = UserMessage("a", "r-1", interrupt=True), UserMessage("b", "r-2")
    assert not has_interruption(after((0, later)))
    said: list[tuple[int, Body]] = [(0, later), (1, ControlStep("m", "1")), (1, stop), (0, later)]
    assert has_interruption(after(*said))
    assert has_interruption(after(*said, (2, ControlStep(MESSAGES, "1"))))
    assert not has_interruption(after(*said, (2, ControlStep(MESSAGES, "2"))))


async def test_a_step_has_not_the_name_of_those_that_read_messages() -> None:
    async def ask(_request: object) -> None:
        raise AssertionError("the step was begun")

    with pytest.raises(ValueError, match="choose another one"):
        await FunctionWork("t1", "", ask).step(MESSAGES, str)


def test_steps_are_limited_and_an_operators_extra_steps_count() -> None:
    assert step_limit(after(), 3) is None
    limit = step_limit(after(), 4)
    assert limit is not None
    assert (limit.to_state, limit.reason) == (TaskState.COST_EXCEEDED, "STEP_LIMIT")
    assert step_limit(after((0, OperatorRequest("more", Requeue(extra_steps=1)))), 4) is None


def test_a_fork_may_make_as_many_steps_beside_those_it_copied() -> None:
    bodies: list[tuple[int, Body]] = [
        (0, Submitted(SPEC)),
        (0, Forked("t", 4, 2)),
        (1, ControlStep("one", "1")),
        (2, ControlStep("two", "2")),
        (0, QUEUED),
    ]
    point = fold(Entry(sequence, *fact) for sequence, fact in enumerate(bodies, 1))
    assert step_limit(point, 5) is None
    assert step_limit(point, 6) is not None


def test_retries_are_counted_since_the_last_new_step() -> None:
    retry = Transition(TaskState.RETRY_SCHEDULED, "FUNCTION_FAILED", from_state=TaskState.RUNNING)
    assert after((0, retry), (0, retry)).retries == 2
    assert after((0, retry), (1, ControlStep("count", "3"))).retries == 0


@pytest.mark.parametrize(
    ("failure", "retries", "state"),
    [
        (ControlFailure("TryAgain", "later", True), 0, TaskState.RETRY_SCHEDULED),
        (ControlFailure("TryAgain", "later", True), 3, TaskState.FAILED),
        (ControlFailure("KeyError", "month", False), 0, TaskState.FAILED),
    ],
)
def test_retryable_failure_is_retried(failure: ControlFailure, retries: int, state: TaskState) -> None:
    move = after_function_failure(failure, retries, RetryPolicy(), random_fraction=0.5)
    assert (move.to_state, move.reason) == (state, "FUNCTION_FAILED")
    assert failure.error_class in move.message


def test_requested_delay_is_at_most_a_day() -> None:
    failure = ControlFailure("TryAgain", "much later", True, 10**9)
    assert after_function_failure(failure, 0, RetryPolicy(), random_fraction=0.0).retry_delay_seconds == 24 * 3600


class Known(Exception):  # noqa: N818
    retryable = False


@pytest.mark.parametrize(
    ("error_class", "reason"), [("SERVER_ERROR", "MODEL_UNAVAILABLE"), ("AUTHENTICATION", "MODEL_ACCOUNT_REFUSED")]
)
def test_function_waits_for_a_provider_that_is_away(error_class: str, reason: str) -> None:
    """An outage is not a fault of the function, however often it is tried."""
    failure = ControlFailure(error_class, "words", retryable=error_class == "SERVER_ERROR")
    move = after_function_failure(failure, 1000, RetryPolicy(), random_fraction=0.5)
    assert (move.to_state, move.reason) == (TaskState.RETRY_SCHEDULED, reason)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ConnectionResetError("gone"), True),
        (TimeoutError(), True),
        (TryAgain("soon", retry_after_seconds=2), True),
        (Known("no"), False),
        (KeyError("month"), False),
        (StepFailed("pay", ControlFailure("ConnectionError", "gone", True)), True),
    ],
)
def test_failures_are_typed(error: Exception, retryable: bool) -> None:
    assert failure_of(error).retryable is retryable


def test_failure_with_any_text_can_be_sent() -> None:
    failure = failure_of(ValueError("\ud800" + "x" * 5000))
    assert len(failure.message.encode()) <= 4000


def test_functions_are_offered_like_loops() -> None:
    assert SPEC.dispatch_loop == "control.month_end"
    assert offered_function(SPEC.dispatch_loop) == "month_end"
    assert offered_function("messages") == offered_function("control") == ""


@pytest.mark.parametrize("timeout_seconds", [0.0, -1.0, math.nan])
async def test_a_step_has_some_time(timeout_seconds: float) -> None:
    async def ask(_request: object) -> None:
        raise AssertionError("the step was begun")

    work = FunctionWork("t1", "", ask)
    with pytest.raises(ValueError, match="timeout"):
        await work.step("step", str, timeout_seconds=timeout_seconds)
    with pytest.raises(ValueError, match="timeout"):
        await work.gather(("step", str), timeout_seconds=timeout_seconds)


@pytest.mark.parametrize("after_seconds", [1e15, 1e300, pytest.param(10**400, id="beyond floats")])
def test_a_wait_beyond_all_limits_is_the_longest_one(after_seconds: float) -> None:
    """No message carries such a number: the failure could not be recorded, and its worker crashed again and again."""
    failure = failure_of(TryAgain("later", retry_after_seconds=after_seconds))
    assert failure.retry_after_seconds == MAX_RETRY_SECONDS
    assert new_entry(1, ControlStep("step", failure=failure)).ByteSize()


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise KeyError("code")


class Unusual(BaseException):
    """As some libraries raise it past `except Exception`."""


@pytest.mark.parametrize("error", [UnreadableError(), Unusual("odd")])
async def test_function_fails_with_any_exception(error: BaseException) -> None:
    """Its loop waited for a request that never came, until the claim counted as stuck."""

    async def function(_work: object, _given: object) -> None:
        raise error

    async with FunctionRun(function, ControlWork("f"), "t1", "") as run, asyncio.timeout(PATIENCE_SECONDS):
        request = (await run.next()).request
    assert isinstance(request, Raised)
    assert request.failure.error_class == type(error).__name__
