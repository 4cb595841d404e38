"""Timeouts by phase: what each comes to, how they are shown, and which of them are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import InvalidRequest
from tenure.domain.fold import fold
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import BUDGET_WAIT_REASONS, Reason, TaskState
from tenure.domain.task import MAX_START_DELAY_SECONDS, TaskPolicy, TaskSpec
from tenure.domain.timeouts import (
    ACTIONS,
    NEED_DURATION,
    REASONS,
    WAITS,
    Phase,
    PhaseTimeout,
    TimeoutAction,
    Timeouts,
    TimeoutTransition,
    after_timeout,
)
from tenure.domain.waits import WaitDeadlinePolicy, WaitKind
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.validators import validate
from tenure.wire.common import TIMEOUT_ACTIONS, duration, held_back_seconds, timestamp
from tenure.wire.task import spec_to_domain, spec_to_wire

RETRY = RetryPolicy(max_attempts=3, initial_seconds=10.0, factor=3.0, cap_seconds=20.0)


def move(action: Any, retries: int = 0, phase: Any = Phase.STEP) -> Any:
    return after_timeout(phase, action, RETRY, retries, detail="too long", random_fraction=0.5)


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_ends_in_its_own_reason(phase: Any) -> None:
    failed = move(TimeoutAction.FAIL, phase=phase)
    assert failed == TimeoutTransition(TaskState.FAILED, REASONS[phase], "too long")
    sharing = {other for other, reason in REASONS.items() if reason == REASONS[phase]}
    assert sharing == (WAITS if phase in WAITS else {phase})


def test_a_policy_fails_times_out_retries_or_goes_on() -> None:
    assert move(TimeoutAction.GO_ON) is None
    assert move(TimeoutAction.TIME_OUT).to_state is TaskState.TIMED_OUT
    first, second = move(TimeoutAction.RETRY), move(TimeoutAction.RETRY, retries=1)
    assert (first.to_state, first.retry_delay_seconds) == (TaskState.RETRY_SCHEDULED, 5.0)
    assert second.retry_delay_seconds == 10.0  # 30 s, at most 20, half of it
    assert move(TimeoutAction.RETRY, retries=2) == TimeoutTransition(
        TaskState.FAILED, Reason.STEP_TIMEOUT, "too long (after 2 retries of the task)"
    )


def test_unset_timeouts_have_the_former_behaviour() -> None:
    timeouts = Timeouts()
    goes_on = [phase for phase in Phase if timeouts.action(phase) is TimeoutAction.GO_ON]
    assert goes_on == [Phase.START, Phase.MODEL_CALL, Phase.TOOL_CALL, Phase.PROGRESS]
    assert all(timeouts.action(phase) in ACTIONS[phase] for phase in Phase)
    assert timeouts.action_of_wait(WaitKind.QUESTION, WaitDeadlinePolicy.GO_ON) is TimeoutAction.GO_ON
    assert timeouts.action_of_wait(WaitKind.QUESTION, WaitDeadlinePolicy.TIME_OUT) is TimeoutAction.TIME_OUT


def test_a_wait_is_no_longer_than_the_policy_allows() -> None:
    limited = Timeouts(wait=PhaseTimeout(60.0, TimeoutAction.FAIL))
    assert [limited.wait_seconds(WaitKind.EVENT, request) for request in (0.0, 5.0, 600.0)] == [60.0, 5.0, 60.0]
    assert [Timeouts().wait_seconds(WaitKind.EVENT, request) for request in (0.0, 600.0)] == [7200.0, 600.0]
    assert limited.action_of_wait(WaitKind.QUESTION, WaitDeadlinePolicy.GO_ON) is TimeoutAction.FAIL


def test_waits_for_persons_and_events_have_timeouts_apart() -> None:
    apart = Timeouts(
        wait=PhaseTimeout(60.0, TimeoutAction.FAIL),
        wait_person=PhaseTimeout(30.0),
        wait_event=PhaseTimeout(None, TimeoutAction.RETRY),
    )
    kinds = (WaitKind.QUESTION, WaitKind.TOOL_APPROVAL, WaitKind.EVENT, WaitKind.SUB_AGENTS)
    assert [apart.wait_seconds(kind, 0.0) for kind in kinds] == [30.0, 30.0, 60.0, 60.0]
    assert [apart.action_of_wait(kind, WaitDeadlinePolicy.GO_ON) for kind in kinds] == [
        TimeoutAction.FAIL,
        TimeoutAction.FAIL,
        TimeoutAction.RETRY,
        TimeoutAction.FAIL,
    ]
    assert Timeouts(wait_person=PhaseTimeout(5.0)).wait_seconds(WaitKind.EVENT, 0.0) == 7200.0


def test_timeout_retries_count_per_attempt() -> None:
    def moved(to_state: Any, reason: Any, from_state: Any = TaskState.RUNNING) -> Any:
        return facts.Transition(to_state, reason, from_state=from_state)

    retry = TaskState.RETRY_SCHEDULED
    answer = facts.AssistantMessage(1, ({"type": "text", "text": "hm"},), "pause_turn", usage=NOTHING)
    bodies = [
        facts.Submitted(TaskSpec("go")),
        facts.Transition(TaskState.QUEUED, Reason.SUBMITTED),
        moved(retry, Reason.TOOL_TIMEOUT),
        moved(retry, Reason.MODEL_UNAVAILABLE),
        answer,
        moved(retry, Reason.QUEUED_TOO_LONG),
    ]
    point = fold([facts.Entry(number, 1, body) for number, body in enumerate(bodies, 1)])
    assert (point.timeout_retries, point.retries) == (2, 0)
    for number, reason in enumerate(
        (Reason.MODEL_UNAVAILABLE, *BUDGET_WAIT_REASONS), 7
    ):  # who waits for room fails nothing
        point.apply(facts.Entry(number, 1, moved(retry, reason)))
    assert (point.timeout_retries, point.retries) == (2, 1)
    last = 7 + len(BUDGET_WAIT_REASONS)
    point.apply(facts.Entry(last + 1, 1, moved(TaskState.FAILED, Reason.QUEUED_TOO_LONG)))
    point.apply(facts.Entry(last + 2, 1, moved(TaskState.QUEUED, Reason.OPERATOR_REQUEUE, TaskState.FAILED)))
    assert point.timeout_retries == 0


NOTHING = TokenUsage()


def test_timeouts_and_the_start_survive_the_wire() -> None:
    timeouts = Timeouts(
        queued=PhaseTimeout(600.0, TimeoutAction.RETRY),
        progress=PhaseTimeout(None, TimeoutAction.FAIL),
        model_call=PhaseTimeout(1.5),
    )
    start = datetime(2031, 5, 1, 12, tzinfo=UTC)
    spec = TaskSpec("go", policy=TaskPolicy(timeouts=timeouts), start_time=start)
    wire = spec_to_wire(spec)
    assert spec_to_domain(wire) == spec
    assert [field.name for field, _ in wire.policy.timeouts.ListFields()] == ["queued", "model_call", "progress"]
    assert not spec_to_wire(TaskSpec("go")).policy.HasField("timeouts")


def test_an_action_of_a_newer_release_is_the_phases_default() -> None:
    spec = task_pb2.TaskSpec()
    spec.policy.timeouts.start.action = 99  # type: ignore[assignment]  # what this release does not know
    assert spec_to_domain(spec).policy.timeouts.action(Phase.START) is TimeoutAction.GO_ON


def submit_request(phase: Any, after: Any = None, action: Any = None) -> Any:
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go"))
    response = getattr(request.spec.policy.timeouts, phase.field)
    if after is not None:
        response.after.CopyFrom(duration(after))
    if action is not None:
        response.action = TIMEOUT_ACTIONS.to_wire(action)
    return request


def refused(request: Any) -> Any:
    with pytest.raises(InvalidRequest) as error:
        validate(request)
    return [violation.field for violation in error.value.violations]


@pytest.mark.parametrize("phase", Phase)
def test_invalid_action_of_a_phase_is_refused(phase: Any) -> None:
    after = None if phase is Phase.TASK else 5.0
    for action in TimeoutAction:
        request = submit_request(phase, after, action)
        if action in ACTIONS[phase]:
            validate(request)
        else:
            assert refused(request) == [f"spec.policy.timeouts.{phase.field}.action"]


@pytest.mark.parametrize("phase", Phase)
def test_durations_are_bounded(phase: Any) -> None:
    field = f"spec.policy.timeouts.{phase.field}.after"
    for after in (-1.0, 0.5, 31 * 86_400.0):
        assert refused(submit_request(phase, after)) == [field]
    if phase in NEED_DURATION:
        assert refused(submit_request(phase, action=TimeoutAction.FAIL)) == [field]


def test_a_start_is_not_further_ahead_than_a_year() -> None:
    now = datetime.now(UTC)
    validate(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", start_time=timestamp(now - timedelta(days=1)))))
    validate(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", start_time=timestamp(now + timedelta(days=300)))))
    late = timestamp(now + timedelta(seconds=MAX_START_DELAY_SECONDS + 60))
    assert refused(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", start_time=late))) == ["spec.start_time"]


def test_a_task_is_held_until_its_start_only() -> None:
    def task(**fields: Any) -> Any:
        spec = task_pb2.TaskSpec(start_time=timestamp(datetime.fromtimestamp(100, UTC)))
        return task_pb2.Task(spec=spec, **{"state": task_pb2.TASK_STATE_QUEUED, "attempt": 1, **fields})

    assert held_back_seconds(task(), 40.0) == 60.0
    assert held_back_seconds(task(), 100.0) is None
    assert held_back_seconds(task(claim_count=1), 40.0) is None
    assert held_back_seconds(task(attempt=2), 40.0) is None
    assert held_back_seconds(task(state=task_pb2.TASK_STATE_CANCELLED), 40.0) is None
