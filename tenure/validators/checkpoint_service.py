"""Checks the requests of CheckpointService."""

from __future__ import annotations

from typing import Final

from tenure.domain.fencing import MAX_GENERATION
from tenure.domain.outputs import MAX_OUTPUTS, problem_of_output
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import task_pb2
from tenure.validators import schedule_service, task_service
from tenure.validators.admin_service import check_operator_request
from tenure.validators.common import (
    MAX_COMMIT_BYTES,
    Check,
    check_claim_epoch,
    check_duration,
    check_frame,
    check_guarded,
    check_list,
    check_token,
    is_json,
)
from tenure.validators.rules import Violations
from tenure.validators.task import check_spec
from tenure.validators.task_service import check_fork, check_message_text, check_wait, check_wait_answer
from tenure.wire.tool import output_to_domain


def _create(request: checkpoint.CreateTaskRequest, v: Violations) -> None:
    check_spec(request.spec, v)
    fits = not request.prepared_task_id or bool(request.files)
    v.require(fits, "prepared_task_id", "must be empty without files")


def _prepare_fork(request: checkpoint.PrepareForkRequest, v: Violations) -> None:
    v.require(request.HasField("fork"), "fork", "must be set")
    check_fork(request.fork, v)
    v.require(not request.fork.prepared_task_id, "fork.prepared_task_id", "must be empty: PrepareFork returns it")


def _prepare_task(request: checkpoint.PrepareTaskRequest, v: Violations) -> None:
    _create(request.create_task, v)
    v.require(
        bool(request.create_task.files), "create_task.files", "must not be empty: only they need an id beforehand"
    )
    prepared = request.create_task.prepared_task_id
    v.require(not prepared, "create_task.prepared_task_id", "must be empty: PrepareTask returns it")


def _find_repeat(request: checkpoint.FindRepeatRequest, v: Violations) -> None:
    kind = request.WhichOneof("request")
    v.require(kind is not None, "request", "must be set")
    if kind is not None:
        repeated = getattr(request, kind)
        {**CHECKS, **task_service.CHECKS, **schedule_service.CHECKS}[type(repeated)](repeated, v)


_TOGETHER: Final = f"at most {MAX_COMMIT_BYTES} bytes together"


def _commit(request: checkpoint.CommitRequest, v: Violations) -> None:
    check_token(request.token, v)
    v.require(v.size <= MAX_COMMIT_BYTES, "entries", _TOGETHER)
    reserves, moves = request.HasField("reserve"), request.HasField("transition")
    if reserves:
        problem = "must not be set with a transition: a task that leaves RUNNING makes no model call"
        v.require(not moves, "reserve", problem)
        _reserve(request.reserve, v)
    elif not moves:
        v.require(bool(request.entries), "entries", "must not be empty without a transition or a reserve")
    if moves:
        _transition(request.transition, v)


def _reserve(reserve: checkpoint.Reserve, v: Violations) -> None:
    v.between("reserve.min_output_tokens", reserve.min_output_tokens, 1, max(1, reserve.max_output_tokens))
    through = reserve.summary_through_step
    v.require(0 <= through < max(1, reserve.step), "reserve.summary_through_step", "must be 0 or less than the step")


def _transition(transition: checkpoint.Transition, v: Violations) -> None:
    v.require(bool(transition.to_state), "transition.to_state", "must be set")
    check_duration("transition.retry_delay", transition.retry_delay, 24 * 3600, v)
    check_wait(transition, v)
    if transition.result_json:
        succeeds = transition.to_state == task_pb2.TASK_STATE_SUCCEEDED
        v.require(succeeds, "transition.result_json", "must be empty unless to_state is SUCCEEDED")
        _result(transition.result_json, v)
    _outputs(transition, v)


def _outputs(transition: checkpoint.Transition, v: Violations) -> None:
    if not transition.outputs:
        return
    succeeds = transition.to_state == task_pb2.TASK_STATE_SUCCEEDED
    v.require(succeeds, "transition.outputs", "must be empty unless to_state is SUCCEEDED")
    for index, output in enumerate(transition.outputs[:MAX_OUTPUTS]):
        problem = problem_of_output(output_to_domain(output))
        v.require(not problem, f"transition.outputs[{index}]", problem)
        is_named = bool(output.call_id)
        v.require(is_named, f"transition.outputs[{index}].call_id", 'must be "<step>.<index>"')


def _result(result_json: str, v: Violations) -> None:
    v.require(is_json(result_json), "transition.result_json", "must be JSON")


def _grants(request: checkpoint.RegisterGrantsRequest, v: Violations) -> None:
    """Checks grants. No task and no claim may occur twice: the answer names claims only, not tasks."""
    for index, grant in enumerate(request.grants):
        check_claim_epoch(f"grants[{index}].epoch", grant.epoch, v)
    tasks = {grant.task_id.lower() for grant in request.grants}
    v.require(len(tasks) == len(request.grants), "grants", "must not name a task twice")
    claims = {grant.claim_id for grant in request.grants}
    v.require(len(claims) == len(request.grants), "grants", "must not name a claim twice")


def _raise_generation(request: checkpoint.RaiseGenerationRequest, v: Violations) -> None:
    v.between("expected", request.expected, 0, MAX_GENERATION - 1)


def _claimable(request: checkpoint.ListClaimableRequest, v: Violations) -> None:
    check_duration("reserve_duration", request.reserve_duration, 60, v)


def _endings(request: checkpoint.ListEndingsRequest, v: Violations) -> None:
    check_duration("grace", request.grace, 60, v)


def _append_external(request: checkpoint.AppendForeignRequest, v: Violations) -> None:
    v.require(request.WhichOneof("fact") is not None, "fact", "must be set")
    if request.HasField("user_message"):
        check_message_text("user_message.text", request.user_message.text, v)
    if request.HasField("wait_answer"):
        check_wait_answer(request.wait_answer, v, "wait_answer.")
    if request.HasField("operator_request"):
        check_operator_request(request.operator_request, v)


def _report(request: checkpoint.ReportUsageRequest, v: Violations) -> None:
    check_token(request.token, v)
    usage = request.usage
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )
    v.require(min(counts) >= 0, "usage", "must not be negative")
    v.require(sum(counts) >= 1, "usage", "must have at least one token")


CHECKS: Final[dict[type, Check]] = {
    checkpoint.GroupTasksRequest: check_list,
    checkpoint.WatchChangesRequest: check_list,
    checkpoint.CreateTaskRequest: _create,
    checkpoint.PrepareForkRequest: _prepare_fork,
    checkpoint.PrepareTaskRequest: _prepare_task,
    checkpoint.FindRepeatRequest: _find_repeat,
    checkpoint.OpenRequest: check_guarded,
    checkpoint.CommitRequest: _commit,
    checkpoint.CommitStreamRequest: check_frame("commits"),
    checkpoint.ListClaimableRequest: _claimable,
    checkpoint.RegisterGrantsRequest: _grants,
    checkpoint.RaiseGenerationRequest: _raise_generation,
    checkpoint.ListEndingsRequest: _endings,
    checkpoint.AppendForeignRequest: _append_external,
    checkpoint.ReportUsageRequest: _report,
}
