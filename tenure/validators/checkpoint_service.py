"""Checks the requests of CheckpointService."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.budget import MAX_TOKENS
from tenure.domain.fencing import MAX_GENERATION
from tenure.domain.outputs import MAX_OUTPUTS, problem_of_output
from tenure.domain.pools import MAX_POOL_NAMES
from tenure.domain.result_schema import MAX_RESULT_BYTES
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import task_pb2
from tenure.validators import schedule_service
from tenure.validators.admin_service import (
    check_calls_in_doubt,
    check_in_doubt_page,
    check_operator_request,
    check_prune,
)
from tenure.validators.common import (
    CALL_ID,
    MAX_COMMIT_BYTES,
    MAX_ENTRIES,
    MAX_HOLDINGS,
    MAX_ID_CHARACTERS,
    MAX_TRANSITION_MESSAGE,
    Check,
    Violations,
    check_bills,
    check_changes,
    check_claim_epoch,
    check_duration,
    check_entries,
    check_frame,
    check_list,
    check_lower_tiers,
    check_task_id,
    check_text,
    check_token,
    check_watch,
    is_json,
)
from tenure.validators.task import check_spec
from tenure.validators.task_service import check_fork, check_message_text, check_wait, check_wait_answer
from tenure.wire.tool import output_to_domain


def _create(request: checkpoint.CreateTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 1, 128)
    v.length("traceparent", request.traceparent, 0, 128)
    check_spec(request.spec, v, "spec.")


def _fork(request: checkpoint.CheckpointServiceForkTaskRequest, v: Violations) -> None:
    check_fork(request, v)
    v.length("request_id", request.request_id, 1, 128)
    v.length("actor", request.actor, 1, 200)
    if request.prepared_task_id:
        v.uuid("prepared_task_id", request.prepared_task_id)


def _prepare_fork(request: checkpoint.PrepareForkRequest, v: Violations) -> None:
    _fork(request.fork, v)
    v.require(not request.fork.prepared_task_id, "fork.prepared_task_id", "must be empty: PrepareFork returns it")


def _find_repeat(request: checkpoint.FindRepeatRequest, v: Violations) -> None:
    kind = request.WhichOneof("request")
    v.require(kind is not None, "request", "must be set")
    if kind is not None:
        repeated = getattr(request, kind)
        {**CHECKS, **schedule_service.CHECKS}[type(repeated)](repeated, v)


def _open(request: checkpoint.OpenRequest, v: Violations) -> None:
    check_token(request.token, v)
    v.require(request.after_sequence >= 0, "after_sequence", "must not be negative")


def _commit(request: checkpoint.CommitRequest, v: Violations) -> None:
    check_token(request.token, v)
    v.uuid("commit_id", request.commit_id)
    v.require(request.commit_number >= 1, "commit_number", "must be 1 or more")
    v.length("traceparent", request.traceparent, 0, 128)
    v.require(request.known_sequence >= 0, "known_sequence", "must not be negative")
    v.require(len(request.entries) <= MAX_ENTRIES, "entries", f"at most {MAX_ENTRIES}")
    v.require(request.ByteSize() <= MAX_COMMIT_BYTES, "entries", f"at most {MAX_COMMIT_BYTES} bytes together")
    has_content = bool(request.entries) or request.HasField("transition") or request.HasField("reserve")
    v.require(has_content, "entries", "must not be empty without a transition or a reserve")
    both = request.HasField("transition") and request.HasField("reserve")
    v.require(not both, "reserve", "must not be set with a transition: a task that leaves RUNNING makes no model call")
    if request.HasField("reserve"):
        _reserve(request.reserve, v)
    if request.HasField("transition"):
        _transition(request.transition, v)


def _reserve(reserve: checkpoint.Reserve, v: Violations) -> None:
    v.require(reserve.step >= 1, "reserve.step", "must be 1 or more")
    v.require(reserve.attempt_number >= 1, "reserve.attempt_number", "must be 1 or more")
    v.between("reserve.input_tokens", reserve.input_tokens, 0, MAX_TOKENS)
    v.between("reserve.min_output_tokens", reserve.min_output_tokens, 1, max(1, reserve.max_output_tokens))
    v.require(reserve.max_output_tokens >= 1, "reserve.max_output_tokens", "must be 1 or more")
    through = reserve.summary_through_step
    v.require(0 <= through < max(1, reserve.step), "reserve.summary_through_step", "must be 0 or less than the step")


def _transition(transition: checkpoint.Transition, v: Violations) -> None:
    v.require(bool(transition.to_state), "transition.to_state", "must be set")
    v.length("transition.reason", transition.reason, 1, 64)
    v.length("transition.message", transition.message, 0, MAX_TRANSITION_MESSAGE)
    v.length("transition.error_class", transition.error_class, 0, 64)
    check_duration("transition.retry_delay", transition.retry_delay, 24 * 3600, v)
    check_wait(transition, v)
    check_calls_in_doubt(transition.calls_in_doubt, v, "transition.calls_in_doubt")
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
    v.require(len(transition.outputs) <= MAX_OUTPUTS, "transition.outputs", f"at most {MAX_OUTPUTS}")
    for index, output in enumerate(transition.outputs[:MAX_OUTPUTS]):
        problem = problem_of_output(output_to_domain(output))
        v.require(not problem, f"transition.outputs[{index}]", problem)
        v.require(
            bool(CALL_ID.match(output.call_id)), f"transition.outputs[{index}].call_id", 'must be "<step>.<index>"'
        )


def _result(result_json: str, v: Violations) -> None:
    if len(result_json.encode()) > MAX_RESULT_BYTES:
        v.require(holds=False, field="transition.result_json", description=f"at most {MAX_RESULT_BYTES} bytes")
    else:
        v.require(is_json(result_json), "transition.result_json", "must be JSON")


def _at_most(items: str, most: int) -> Check:
    def check(request: Any, v: Violations) -> None:
        values = getattr(request, items)
        v.require(len(values) <= most, items, f"at most {most}")
        for index, value in enumerate(values):
            v.uuid(f"{items}[{index}].task_id", value.task_id)

    return check


def _grants(request: checkpoint.RegisterGrantsRequest, v: Violations) -> None:
    """Checks grants. No task and no claim may occur twice: the answer names claims only, not tasks."""
    _at_most("grants", 128)(request, v)
    for index, grant in enumerate(request.grants):
        check_claim_epoch(f"grants[{index}].epoch", grant.epoch, v)
        check_text(f"grants[{index}].claim_id", grant.claim_id, 1, MAX_ID_CHARACTERS, v)
    tasks = {grant.task_id.lower() for grant in request.grants}
    v.require(len(tasks) == len(request.grants), "grants", "must not name a task twice")
    claims = {grant.claim_id for grant in request.grants}
    v.require(len(claims) == len(request.grants), "grants", "must not name a claim twice")


def _raise_generation(request: checkpoint.RaiseGenerationRequest, v: Violations) -> None:
    v.between("expected", request.expected, 0, MAX_GENERATION - 1)
    v.length("reason", request.reason, 0, 1000)


def _running(request: checkpoint.ListRunningRequest, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 1000)
    if request.after_task_id:
        v.uuid("after_task_id", request.after_task_id)


def _claimable(request: checkpoint.ListClaimableRequest, v: Violations) -> None:
    v.between("limit", request.limit, 1, 128)
    check_duration("reserve_duration", request.reserve_duration, 60, v)
    v.require(len(request.worker_ids) <= MAX_HOLDINGS, "worker_ids", f"at most {MAX_HOLDINGS}")
    v.require(len(request.tenants) <= MAX_POOL_NAMES, "tenants", f"at most {MAX_POOL_NAMES}")
    check_lower_tiers("lower_tiers", request.lower_tiers, v)


def _endings(request: checkpoint.ListEndingsRequest, v: Violations) -> None:
    v.between("limit", request.limit, 1, 128)
    check_duration("grace", request.grace, 60, v)


def _append_external(request: checkpoint.AppendForeignRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 1, 128)
    v.length("actor", request.actor, 1, 200)
    v.require(request.WhichOneof("fact") is not None, "fact", "must be set")
    if request.HasField("user_message"):
        check_message_text("user_message.text", request.user_message.text, v)
    v.length("cancel_request.reason", request.cancel_request.reason, 0, 1000)
    if request.HasField("wait_answer"):
        check_wait_answer(request.wait_answer, v, "wait_answer.")
    if request.HasField("operator_request"):
        check_operator_request(request.operator_request, v)


def _report(request: checkpoint.ReportUsageRequest, v: Violations) -> None:
    check_token(request.token, v)
    v.require(request.step >= 1, "step", "must be 1 or more")
    v.require(request.attempt_number >= 1, "attempt_number", "must be 1 or more")
    v.length("provider_request_id", request.provider_request_id, 0, 200)
    usage = request.usage
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )
    v.require(min(counts) >= 0, "usage", "must not be negative")
    v.require(sum(counts) >= 1, "usage", "must have at least one token")


def _inspect_calls(request: checkpoint.InspectModelCallsRequest, v: Violations) -> None:
    v.require(len(request.calls) <= 512, "calls", "at most 512")
    for index, call in enumerate(request.calls):
        v.uuid(f"calls[{index}].task_id", call.task_id)
        v.require(call.step >= 1, f"calls[{index}].step", "must be 1 or more")
        v.require(call.attempt_number >= 1, f"calls[{index}].attempt_number", "must be 1 or more")


def _prune(request: checkpoint.CheckpointServicePruneTasksRequest, v: Violations) -> None:
    check_prune(request, v)
    v.length("actor", request.actor, 1, 200)


def _offers(request: checkpoint.ListPruningsRequest | checkpoint.ListDoubtWaitsRequest, v: Violations) -> None:
    v.between("limit", request.limit, 1, 128)


def _forgotten(request: checkpoint.NoteForgottenRequest, v: Violations) -> None:
    v.require(len(request.task_ids) <= 128, "task_ids", "at most 128")
    for index, task_id in enumerate(request.task_ids):
        v.uuid(f"task_ids[{index}]", task_id)


CHECKS: Final[dict[type, Check]] = {
    checkpoint.CreateTaskRequest: _create,
    checkpoint.CheckpointServiceForkTaskRequest: _fork,
    checkpoint.PrepareForkRequest: _prepare_fork,
    checkpoint.FindRepeatRequest: _find_repeat,
    checkpoint.OpenRequest: _open,
    checkpoint.CommitRequest: _commit,
    checkpoint.CommitStreamRequest: check_frame("commits"),
    checkpoint.CheckpointServiceGetTaskRequest: check_task_id,
    checkpoint.CheckpointServiceListTasksRequest: check_list,
    checkpoint.ListEntriesRequest: check_entries,
    checkpoint.WatchEntriesRequest: check_watch,
    checkpoint.WatchChangesRequest: check_changes,
    checkpoint.ListClaimableRequest: _claimable,
    checkpoint.RegisterGrantsRequest: _grants,
    checkpoint.RaiseGenerationRequest: _raise_generation,
    checkpoint.RequeueLostRequest: _at_most("lost", 512),
    checkpoint.InspectClaimsRequest: _at_most("claims", 512),
    checkpoint.ListRunningRequest: _running,
    checkpoint.ListEndingsRequest: _endings,
    checkpoint.AppendForeignRequest: _append_external,
    checkpoint.ListRefusedWritesRequest: check_task_id,
    checkpoint.ListBillsRequest: check_bills,
    checkpoint.ReportUsageRequest: _report,
    checkpoint.InspectModelCallsRequest: _inspect_calls,
    checkpoint.CheckpointServicePruneTasksRequest: _prune,
    checkpoint.ListPruningsRequest: _offers,
    checkpoint.NoteForgottenRequest: _forgotten,
    checkpoint.ListDoubtWaitsRequest: _offers,
    checkpoint.ListDoubtsRequest: check_in_doubt_page,
    checkpoint.RequeueSettledRequest: _at_most("settled", 128),
}
