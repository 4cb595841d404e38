"""The contract's constraints: the error names all that is wrong, by field."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.errors import InvalidRequest
from tenure.domain.fencing import MAX_GENERATION
from tenure.domain.states import ReleaseReason
from tenure.v1 import access_pb2, task_pb2, token_pb2, tool_pb2
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import api_key_service_pb2 as keys
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import schedule_service_pb2 as schedules
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1 import tool_provider_service_pb2 as providers
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators import validate
from tenure.validators.common import MAX_ARGUMENT_BYTES, MAX_COMMIT_BYTES, MAX_GOAL_BYTES

TOKEN = token_pb2.FencingToken(claims=b"c", key_id="k", signature=b"s")


def fields(request: object) -> set[str]:
    with pytest.raises(InvalidRequest) as refused:
        validate(request)  # type: ignore[arg-type]  # any message
    return {violation.field for violation in refused.value.violations}


def commit(**changes: object) -> checkpoint.CommitRequest:
    request = checkpoint.CommitRequest(token=TOKEN, commit_id=str(uuid.uuid4()), commit_number=1)
    request.entries.add(step=1)
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def test_a_goal_is_all_a_submit_needs() -> None:
    validate(tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="find out")))


def test_an_empty_part_of_a_spec_is_as_valid_as_an_absent_one() -> None:
    """Absent parts are not checked, so their defaults must break no rule."""
    spec = task_pb2.TaskSpec(goal="find out")
    for part in (spec.limits, spec.policy, spec.source, spec.start_time, spec.agent.parameters):
        part.SetInParent()
    validate(tasks.SubmitTaskRequest(spec=spec))


@pytest.mark.parametrize("blank", ["", " ", "\n\t\u3000"])
@pytest.mark.parametrize(
    "request_of",
    [
        lambda goal: tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal=goal)),
        lambda goal: checkpoint.CreateTaskRequest(spec=task_pb2.TaskSpec(goal=goal)),
        lambda goal: schedules.CreateScheduleRequest(name="n", cron="@daily", spec=task_pb2.TaskSpec(goal=goal)),
        lambda goal: schedules.UpdateScheduleRequest(schedule="n", spec=task_pb2.TaskSpec(goal=goal)),
    ],
)
def test_a_blank_goal_is_refused(request_of: Callable[[str], Any], blank: str) -> None:
    assert "spec.goal" in fields(request_of(blank))


def test_a_function_has_no_description_or_one_that_is_not_blank() -> None:
    control = task_pb2.ControlWork(function="month_end", input_json="{}")
    validate(tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(control=control)))
    assert fields(tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal=" ", control=control))) == {"spec.goal"}


def test_violations_are_reported_together() -> None:
    request = tasks.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(
            queue="no spaces",
            agent=task_pb2.AgentSpec(tools=task_pb2.ToolAllowlist(names=["a b"]), max_output_tokens=-1),
            limits=task_pb2.Limits(max_tokens=-1, timeout=Duration(seconds=90_000)),
            labels={"": "x"},
        )
    )
    assert fields(request) == {
        "spec.goal",
        "spec.queue",
        "spec.agent.tools.names[0]",
        "spec.agent.max_output_tokens",
        "spec.limits.max_tokens",
        "spec.limits.timeout",
        "spec.labels['']",
    }


def test_result_schema_is_checked_in_every_request() -> None:
    """The schema's size only: what it says is checked apart, see test_schema_checks.py."""
    none, policy = " " * (16 * 1024 + 1), task_pb2.TaskPolicy(max_result_corrections=21)
    request = tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", result_schema_json=none, policy=policy))
    assert fields(request) == {"spec.result_schema_json", "spec.policy.max_result_corrections"}
    overrides = task_pb2.ForkOverrides(result_schema_json=none)
    fork = tasks.ForkTaskRequest(request_id="f", task_id=str(uuid.uuid4()), actor="a", overrides=overrides)
    assert fields(fork) == {"overrides.result_schema_json"}
    failed = commit()
    failed.transition.to_state, failed.transition.reason = task_pb2.TASK_STATE_FAILED, "RESULT_INVALID"
    failed.transition.result_json = "{"
    assert fields(failed) == {"transition.result_json"}


def test_control_work_needs_a_function_and_no_goal() -> None:
    validate(
        tasks.SubmitTaskRequest(
            spec=task_pb2.TaskSpec(control=task_pb2.ControlWork(function="month_end", input_json='{"month": 10}'))
        )
    )
    validate(
        tasks.SubmitTaskRequest(
            spec=task_pb2.TaskSpec(
                agent=task_pb2.AgentSpec(loop="control"), control=task_pb2.ControlWork(function="month_end")
            )
        )
    )


@pytest.mark.parametrize(
    ("control", "loop", "field"),
    [
        ({"function": ""}, "", "control.function"),
        ({"function": "x" * 56}, "", "control.function"),
        ({"function": "no spaces"}, "", "control.function"),
        ({"function": "f", "input_json": "{"}, "", "control.input_json"),
        ({"function": "f", "input_json": "NaN"}, "", "control.input_json"),
        ({"function": "f", "input_json": "[" * 100_000}, "", "control.input_json"),
        ({"function": "f", "input_json": f'"{"x" * 262_144}"'}, "", "control.input_json"),
        ({"function": "f"}, "messages", "agent.loop"),
        (None, "control", "agent.loop"),
        (None, "control.f", "agent.loop"),
        (None, "undo.f", "agent.loop"),
    ],
)
def test_control_work_is_kept_within_its_bounds(control: dict[str, str] | None, loop: str, field: str) -> None:
    request = tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", agent=task_pb2.AgentSpec(loop=loop)))
    if control is not None:
        request.spec.control.CopyFrom(task_pb2.ControlWork(**control))
    assert fields(request) == {f"spec.{field}"}


def test_a_goal_is_counted_in_bytes() -> None:
    assert fields(tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="é" * (MAX_GOAL_BYTES // 2 + 1)))) == {
        "spec.goal"
    }


def test_a_commit_needs_a_token_an_id_and_a_number() -> None:
    assert fields(checkpoint.CommitRequest()) == {"token", "commit_id", "commit_number", "entries"}
    validate(commit())


def test_a_commit_is_bounded_in_bytes() -> None:
    request = commit()
    for _ in range(5):
        request.entries.add().body.user_message.text = "x" * (MAX_COMMIT_BYTES // 5)
    assert fields(request) == {"entries"}


def test_a_task_that_leaves_running_makes_no_model_call() -> None:
    request = commit()
    request.transition.to_state = task_pb2.TASK_STATE_FAILED
    request.transition.reason = "X"
    request.reserve.step = request.reserve.attempt_number = 1
    request.reserve.max_output_tokens = request.reserve.min_output_tokens = 1
    assert fields(request) == {"reserve"}


@pytest.mark.parametrize("call_id", ["", "1", "1.", "a.b", "1.2.3", "1.2\n"])
def test_a_call_id_is_step_dot_index(call_id: str) -> None:
    assert fields(tools.ExecuteRequest(token=TOKEN, call_id=call_id, tool="t")) == {"call_id"}


def test_a_choice_that_is_not_known_is_not_taken_for_the_default() -> None:
    request = tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go"))
    spec = request.spec
    spec.priority = spec.policy.on_lease_lost = spec.policy.on_in_doubt = spec.source.kind = 99  # type: ignore[assignment]  # as a newer client may send
    assert fields(request) == {
        *("spec.priority", "spec.policy.on_lease_lost", "spec.policy.on_in_doubt", "spec.source.kind"),
    }


def test_a_request_that_may_be_a_repeat_is_checked_as_itself() -> None:
    assert fields(checkpoint.FindRepeatRequest()) == {"request"}
    submit = checkpoint.CreateTaskRequest(spec=task_pb2.TaskSpec(goal="g"))
    assert fields(checkpoint.FindRepeatRequest(create_task=submit)) == {"create_task.request_id"}
    update = schedules.UpdateScheduleRequest(schedule="")
    assert "update_schedule.schedule" in fields(checkpoint.FindRepeatRequest(update_schedule=update))


def grant(**changes: Any) -> checkpoint.RegisterGrantsRequest.Grant:
    values = {"task_id": str(uuid.uuid4()), "epoch": (1 << 40) + 1, "claim_id": str(uuid.uuid4()), **changes}
    return checkpoint.RegisterGrantsRequest.Grant(**values)


@pytest.mark.parametrize("epoch", [0, -1, 1, 1 << 40, (1 << 40) - 1, 5 << 40, -(2**63)])
def test_a_grant_has_an_epoch_that_a_claim_can_have(epoch: int) -> None:
    assert fields(checkpoint.RegisterGrantsRequest(grants=[grant(), grant(epoch=epoch)])) == {"grants[1].epoch"}
    lease = checkpoint.LeaseGrant(resource="a", epoch=epoch, claim_id=str(uuid.uuid4()), holder="h", request_id="r")
    assert "grant.epoch" in fields(checkpoint.RegisterLeaseRequest(grant=lease))


def test_a_task_and_a_claim_are_in_one_grant_of_a_message() -> None:
    one = grant()
    twice = [grant(task_id=one.task_id.upper()), grant(claim_id=one.claim_id), one]
    for other in twice:
        assert fields(checkpoint.RegisterGrantsRequest(grants=[one, other])) == {"grants"}
    validate(checkpoint.RegisterGrantsRequest(grants=[grant(), grant()]))


@pytest.mark.parametrize("expected", [-1, MAX_GENERATION, 2**63 - 1])
def test_a_generation_that_cannot_be_left_is_refused(expected: int) -> None:
    assert fields(checkpoint.RaiseGenerationRequest(expected=expected)) == {"expected"}


def session_message(**message: object) -> coordinator.SessionRequest:
    return coordinator.SessionRequest(**message)  # type: ignore[arg-type]  # any of its messages


def hello_of(**fields: Any) -> coordinator.Hello:
    return coordinator.Hello(**{"worker_id": "w", "session_secret": bytes(32), **fields})


@pytest.mark.parametrize("reason", list(ReleaseReason))
def test_known_release_reason_is_accepted(reason: ReleaseReason) -> None:
    validate(session_message(release=coordinator.Release(task_id="t", claim_id="c", reason=reason)))


@pytest.mark.parametrize("reason", ["", "BORED", "WORKER_LOST"])
def test_unknown_release_reason_is_refused(reason: str) -> None:
    assert fields(session_message(release=coordinator.Release(task_id="t", claim_id="c", reason=reason))) == {
        "release.reason"
    }


def test_empty_session_message_is_refused() -> None:
    assert fields(session_message()) == {"message"}


def test_a_providers_call_is_bounded_in_every_field() -> None:
    good = providers.CallToolRequest(
        tool="t",
        arguments_json="{}",
        idempotency_key="k",
        epoch=1,
        tenant="default",
        task_id=str(uuid.uuid4()),
        call_id="1.0",
    )
    validate(good)
    bad = providers.CallToolRequest(
        tool="a b", arguments_json="x" * (MAX_ARGUMENT_BYTES + 1), token=token_pb2.FencingToken(), traceparent="0" * 129
    )
    bad.timeout.seconds = 90_000
    every_field = {field.name for field in providers.CallToolRequest.DESCRIPTOR.fields}
    assert fields(bad) == every_field - {"token", "timeout"}  # of a value that is too long nothing else is checked
    bad.ClearField("arguments_json")
    bad.ClearField("traceparent")
    assert fields(bad) == every_field - {"arguments_json", "traceparent"}


def test_resolution_is_bounded_in_every_request() -> None:
    resolution = tool_pb2.CallResolution()
    call = tools.ExecuteRequest(token=TOKEN, call_id="1.0", tool="t", resolution=resolution)
    assert fields(call) == {f"resolution.{name}" for name in ("call_attempt", "reason", "actor", "decision")}
    long = tool_pb2.InDoubtDecision(happened=tool_pb2.InDoubtDecision.Happened(result="x" * (MAX_GOAL_BYTES + 1)))
    request = admin.ResolveInDoubtCallRequest(task_id="42", call_id="x", decision=long, request_id="x" * 129)
    wrong = {"task_id", "call_id", "call_attempt", "decision.happened.result", "request_id", "reason"}
    assert fields(request) == wrong
    moved = commit()
    moved.transition.to_state, moved.transition.reason = task_pb2.TASK_STATE_WAITING_USER, "TOOL_IN_DOUBT"
    moved.transition.calls_in_doubt.add(call_id="1", call_attempt=-1)
    assert fields(moved) == {f"transition.calls_in_doubt[0].{name}" for name in ("call_id", "call_attempt")}


@pytest.mark.parametrize("worker_id", ["", "a\0b", "a\x1fb", "\x1b[2J", "a b", "-a", "x" * 129, "\u202ea"])
def test_a_worker_id_is_a_name(worker_id: str) -> None:
    """It goes into rows, into lists that \\x1f separates, and onto operators' terminals."""
    request = coordinator.SessionRequest(hello=hello_of(worker_id=worker_id))
    assert fields(request) == {"hello.worker_id"}
    request.hello.worker_id = "host-1.example_2-7"
    validate(request)


def test_a_live_address_is_an_address() -> None:
    hello = hello_of(live_address="[::1]:80")
    validate(coordinator.SessionRequest(hello=hello))
    hello.live_address = "a\x1b]0;b"
    assert fields(coordinator.SessionRequest(hello=hello)) == {"hello.live_address"}


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (2**63 - 1, 0), (253_402_300_800, 0), (1, -1), (1, 10**9)])
def test_an_impossible_time_is_refused_everywhere(seconds: int, nanos: int) -> None:
    """Python's own conversion raises ValueError: without the check that is an internal error."""
    time = Timestamp(seconds=seconds, nanos=nanos)
    assert fields(admin.PruneTasksRequest(ended_before=time, reason="old", actor="a")) == {"ended_before"}
    assert fields(tenants.GetTenantUsageRequest(end_time=time)) == {"end_time"}
    assert fields(tasks.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="go", start_time=time))) == {"spec.start_time"}


def test_an_impossible_time_reaches_no_rule_across_fields() -> None:
    begin, end = Timestamp(seconds=1_900_000_000, nanos=10**9), Timestamp(seconds=2_000_000_000)
    update = schedules.UpdateScheduleRequest(schedule="nightly", start_time=begin, end_time=end)
    assert fields(update) == {"start_time"}


def test_a_key_for_every_tenant_may_operate() -> None:
    key = keys.CreateApiKeyRequest(name="a", any_tenant=True, permissions=[access_pb2.PERMISSION_READ])
    assert fields(key) == {"permissions"}
    key.permissions.append(access_pb2.PERMISSION_OPERATE)
    validate(key)
