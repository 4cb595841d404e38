"""Checks the requests of TaskService and the reads of AdminService: submits, forks, files, waits and signals."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.budget import MAX_NANO_USD, MAX_TOKENS
from tenure.domain.images import problems_of_files
from tenure.domain.states import Reason
from tenure.domain.waits import MAX_WAIT_SECONDS as WAITS_MAX_WAIT_SECONDS
from tenure.domain.waits import MIN_WAIT_SECONDS, WITHOUT_CALL
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.common import (
    MAX_GOAL_BYTES,
    MAX_WAIT_SECONDS,
    Check,
    check_duration,
    check_entries,
    check_list,
    check_not_blank,
    is_json,
)
from tenure.validators.rules import CALL_ID, Violations
from tenure.validators.task import (
    check_limits,
    check_parameters,
    check_result_schema,
    check_source,
    check_spec,
    check_tools,
)
from tenure.wire.common import WAIT_KINDS, seconds

# Messages for agents, and forks.


def check_message_text(field: str, text: str, v: Violations) -> None:
    """Checks a message for an agent."""
    check_not_blank(field, text, v)
    v.require(len(text.encode()) <= MAX_GOAL_BYTES, field, f"at most {MAX_GOAL_BYTES} bytes")


def check_send(request: tasks.SendMessageRequest, v: Violations) -> None:
    check_message_text("text", request.text, v)
    check_files(request, v)


def check_fork(request: tasks.ForkTaskRequest, v: Violations) -> None:
    if request.message:
        check_message_text("message", request.message, v)
    else:
        v.require(not request.files, "files", "needs a message")
    check_files(request, v)
    _overrides(request.overrides, v)


def _overrides(overrides: task_pb2.ForkOverrides, v: Violations) -> None:
    both = overrides.HasField("tools") and overrides.all_tools
    v.require(not both, "overrides.all_tools", "must not be set together with tools")
    check_tools(overrides.tools, v, "overrides.tools")
    check_limits(overrides.limits, v, "overrides.limits")
    check_parameters(overrides.parameters, v, "overrides.parameters")
    check_source(overrides.source, v, "overrides.source")
    v.require(not overrides.source.HasField("debounce"), "overrides.source.debounce", "must not be set for a fork")
    check_result_schema(overrides.result_schema_json, v, "overrides.result_schema_json")


# The file requests of the gateway and of the tool service.


def check_copy_files(request: tools.CopyFilesRequest, v: Violations) -> None:
    v.require(request.task_id != request.from_task_id, "task_id", "must be another task")


def check_files(
    request: tasks.SubmitTaskRequest
    | tasks.SendMessageRequest
    | tasks.ForkTaskRequest
    | tasks.ResumeTaskRequest
    | tools.PutFilesRequest,
    v: Violations,
) -> None:
    files = ((file.path, len(file.content)) for file in request.files)
    for index, problem in problems_of_files(files):
        v.require(holds=False, field=f"files[{index}]", description=problem)


# The requests of TaskService and the reads of AdminService.


def _submit(request: tasks.SubmitTaskRequest, v: Violations) -> None:
    check_spec(request.spec, v)
    check_files(request, v)


def _wait(request: tasks.WaitTaskRequest, v: Violations) -> None:
    check_duration("timeout", request.timeout, MAX_WAIT_SECONDS, v)


def check_wait(transition: checkpoint.Transition, v: Violations) -> None:
    """Checks the wait that an owner's transition begins."""
    if not transition.HasField("wait"):
        v.require(not transition.HasField("wait_timeout"), "transition.wait_timeout", "must not be set without a wait")
        return
    wait, field = transition.wait, "transition.wait"
    v.require(bool(wait.kind), f"{field}.kind", "must be set")
    v.require(wait.kind != task_pb2.WAIT_KIND_OPERATOR, f"{field}.kind", "only AdminService.BeginWait begins it")
    v.require(not wait.calls or wait.calls[0].call_id == wait.call_id, f"{field}.calls", "must begin with call_id")
    if WAIT_KINDS.find(wait.kind) in WITHOUT_CALL:
        v.require(not wait.call_id, f"{field}.call_id", "must be empty: a wait of this kind has no call")
    else:
        v.require(bool(CALL_ID.match(wait.call_id)), f"{field}.call_id", 'must be "<step>.<index>"')
    _budget_request(wait, v, field)
    is_event = wait.kind == task_pb2.WAIT_KIND_EVENT
    rule = "must be set for an event, and empty for any other wait"
    v.require(bool(wait.correlation_id) == is_event, f"{field}.correlation_id", rule)
    if transition.HasField("wait_timeout"):
        timeout_seconds = seconds(transition.wait_timeout)
        v.between("transition.wait_timeout", timeout_seconds, MIN_WAIT_SECONDS, WAITS_MAX_WAIT_SECONDS)


def _budget_request(wait: task_pb2.Wait, v: Violations, field: str) -> None:
    """Checks what a task asks for. The ledger sets the other fields of the request itself."""
    is_budget = wait.kind == task_pb2.WAIT_KIND_BUDGET
    request, path = wait.budget_request, f"{field}.budget_request"
    v.require(
        wait.HasField("budget_request") == is_budget, path, "must be set for a wait of kind BUDGET, and only there"
    )
    if is_budget:
        limits = (Reason.TOKEN_LIMIT, Reason.MONEY_LIMIT)
        v.require(request.limit in limits, f"{path}.limit", f"must be {' or '.join(limits)}")
        v.between(f"{path}.needed_tokens", request.needed_tokens, 1, MAX_TOKENS)
        v.between(f"{path}.needed_nano_usd", request.needed_nano_usd, 0, MAX_NANO_USD)


def check_wait_answer(answer: Any, v: Violations, prefix: str = "") -> None:
    """Checks a WaitAnswer, or a ResumeTaskRequest, which has the same fields."""
    is_one = bool(answer.WhichOneof("answer")) != bool(answer.calls)
    v.require(is_one, f"{prefix}answer", "must be a decision, a reply, or decisions on calls")
    for index, call in enumerate(answer.calls):
        field = f"{prefix}calls[{index}]"
        is_edit = bool(call.edited_arguments_json)
        v.require(not is_edit or is_json(call.edited_arguments_json), f"{field}.edited_arguments_json", "must be JSON")
    is_edit = bool(answer.edited_arguments_json)
    v.require(not is_edit or is_json(answer.edited_arguments_json), f"{prefix}edited_arguments_json", "must be JSON")


def _signal(request: Any, v: Violations) -> None:
    """Checks a SendSignalRequest, or a ResumeTaskRequest, which has the same fields."""
    v.require(is_json(request.payload_json), "payload_json", "must be JSON")


def _resume(request: tasks.ResumeTaskRequest, v: Violations) -> None:
    if not request.correlation_id:
        v.require(bool(request.task_id), "task_id", "must be a UUID")
        v.require(bool(request.wait_id), "wait_id", "must be set without a correlation_id")
        v.require(request.WhichOneof("answer") != "payload_json", "payload_json", "needs a correlation_id")
        check_wait_answer(request, v)
        check_files(request, v)
        return
    _signal(request, v)
    v.require(request.WhichOneof("answer") == "payload_json", "answer", "must be a payload_json")
    amounts = ("extra_budget_tokens", "extra_budget_nano_usd")
    for field in ("task_id", "wait_id", "comment", "edited_arguments_json", "call_digest", "calls", "files", *amounts):
        v.require(not getattr(request, field), field, "must be empty with a correlation_id")
    v.require(not request.HasField("plan"), "plan", "must be empty with a correlation_id")


CHECKS: Final[dict[type, Check]] = {
    tasks.SubmitTaskRequest: _submit,
    tasks.WaitTaskRequest: _wait,
    tasks.ListTasksRequest: check_list,
    tasks.CountTasksRequest: check_list,
    tasks.WatchTasksRequest: check_list,
    tasks.ListTaskEntriesRequest: check_entries,
    tasks.SendMessageRequest: check_send,
    tasks.ForkTaskRequest: check_fork,
    tasks.ResumeTaskRequest: _resume,
    checkpoint.SendSignalRequest: _signal,
}
