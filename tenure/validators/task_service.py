"""Checks the requests of TaskService and the reads of AdminService: submits, forks, files, waits and signals."""

from __future__ import annotations

import re
from typing import Any, Final

from tenure.domain.budget import MAX_NANO_USD, MAX_TOKENS
from tenure.domain.states import Reason
from tenure.domain.waits import (
    MAX_APPROVED_ARGUMENT_BYTES,
    MAX_CONTEXT_CHARACTERS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    MAX_QUESTION_CHARACTERS,
    MAX_REFERENCE_CHARACTERS,
    MIN_WAIT_SECONDS,
    WITHOUT_CALL,
)
from tenure.domain.waits import (
    MAX_WAIT_SECONDS as WAITS_MAX_WAIT_SECONDS,
)
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.common import (
    CALL_ID,
    MAX_GOAL_BYTES,
    MAX_SYSTEM_BYTES,
    MAX_WAIT_SECONDS,
    Check,
    Violations,
    check_bills,
    check_calls,
    check_changes,
    check_duration,
    check_entries,
    check_list,
    check_task_id,
    check_watch,
    is_json,
)
from tenure.validators.task import (
    check_limits,
    check_result_schema,
    check_source,
    check_spec,
    check_tools,
)
from tenure.wire.common import WAIT_KINDS, seconds

# Messages for agents, and forks.


def check_message_text(field: str, text: str, v: Violations) -> None:
    """Checks a message for an agent. It must not be blank, because model providers refuse a blank text."""
    v.require(bool(text.strip()), field, "must not be blank")
    v.require(len(text.encode()) <= MAX_GOAL_BYTES, field, f"at most {MAX_GOAL_BYTES} bytes")


def check_send(request: tasks.SendMessageRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    check_message_text("text", request.text, v)


def check_fork(request: Any, v: Violations) -> None:
    """Checks the fields that the fork requests of the gateway and of the ledger share."""
    check_task_id(request, v)
    v.length("request_id", request.request_id, 0, 128)
    match request.WhichOneof("point"):
        case "at_sequence":
            v.require(request.at_sequence >= 1, "at_sequence", "must be 1 or more")
        case "step":
            v.require(request.step >= 0, "step", "must not be negative")
    if request.message:
        check_message_text("message", request.message, v)
    _overrides(request.overrides, v)


def _overrides(overrides: task_pb2.ForkOverrides, v: Violations) -> None:
    v.length("overrides.model", overrides.model, 0, 200)
    fits = len(overrides.system.encode()) <= MAX_SYSTEM_BYTES
    v.require(fits, "overrides.system", f"at most {MAX_SYSTEM_BYTES} bytes")
    both = overrides.HasField("tools") and overrides.all_tools
    v.require(not both, "overrides.all_tools", "must not be set together with tools")
    check_tools(overrides.tools, v, "overrides.tools")
    check_limits(overrides.limits, v, "overrides.limits")
    check_source(overrides.source, v, "overrides.source")
    check_result_schema(overrides.result_schema_json, v, "overrides.result_schema_json")


# The file requests of the gateway and of the tool service.

_LONGEST_PATH = 1024
_LONGEST_TOKEN = 16 * 1024
"""A page token contains a path, and paths of deep directories are long."""


def check_list_files(request: Any, v: Violations) -> None:
    check_task_id(request, v)
    v.length("path", request.path, 0, _LONGEST_PATH)
    v.between("page_size", request.page_size, 0, 1000)
    v.length("page_token", request.page_token, 0, _LONGEST_TOKEN)


def check_read_file(request: Any, v: Violations) -> None:
    check_task_id(request, v)
    v.length("path", request.path, 1, _LONGEST_PATH)
    v.require(request.offset >= 0, "offset", "must not be negative")
    v.length("version", request.version, 0, 100)


def check_copy_files(request: tools.CopyFilesRequest, v: Violations) -> None:
    v.uuid("from_task_id", request.from_task_id)
    v.uuid("task_id", request.task_id)
    v.require(request.task_id != request.from_task_id, "task_id", "must be another task")


# The requests of TaskService and the reads of AdminService.


def _submit(request: tasks.SubmitTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 0, 128)
    check_spec(request, v)


def _wait(request: tasks.WaitTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    check_duration("timeout", request.timeout, MAX_WAIT_SECONDS, v)


def _cancel(request: tasks.CancelTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("reason", request.reason, 0, 1000)


_GATEWAY_CHECKS: Final[dict[type, Check]] = {
    tasks.SubmitTaskRequest: _submit,
    tasks.GetTaskRequest: check_task_id,
    tasks.ExplainTaskRequest: check_task_id,
    tasks.WaitTaskRequest: _wait,
    tasks.ListTasksRequest: check_list,
    tasks.ListTaskEntriesRequest: check_entries,
    tasks.WatchTaskRequest: check_watch,
    tasks.WatchTasksRequest: check_changes,
    tasks.CancelTaskRequest: _cancel,
    tasks.SendMessageRequest: check_send,
    tasks.ForkTaskRequest: check_fork,
    tasks.ListFilesRequest: check_list_files,
    tasks.ReadFileRequest: check_read_file,
    admin.ListRefusalsRequest: check_task_id,
    admin.AdminServiceListCallsRequest: check_calls,
    admin.AdminServiceListBillsRequest: check_bills,
}

MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_COMMENT_CHARACTERS: Final = 4000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def check_wait(transition: checkpoint.Transition, v: Violations) -> None:
    """Checks the wait that an owner's transition begins."""
    if not transition.HasField("wait"):
        v.require(not transition.HasField("wait_timeout"), "transition.wait_timeout", "must not be set without a wait")
        return
    wait, field = transition.wait, "transition.wait"
    v.known(f"{field}.kind", task_pb2.WaitKind, wait.kind)
    v.require(bool(wait.kind), f"{field}.kind", "must be set")
    v.require(wait.kind != task_pb2.WAIT_KIND_OPERATOR, f"{field}.kind", "only AdminService.BeginWait begins it")
    v.known(f"{field}.at_deadline", task_pb2.WaitDeadlinePolicy, wait.at_deadline)
    if WAIT_KINDS.find(wait.kind) in WITHOUT_CALL:
        v.require(not wait.call_id, f"{field}.call_id", "must be empty: a wait of this kind has no call")
    else:
        v.require(bool(CALL_ID.match(wait.call_id)), f"{field}.call_id", 'must be "<step>.<index>"')
    _budget_request(wait, v, field)
    v.length(f"{field}.question", wait.question, 0, MAX_QUESTION_CHARACTERS)
    v.length(f"{field}.context", wait.context, 0, MAX_CONTEXT_CHARACTERS)
    v.length(f"{field}.reference", wait.reference, 0, MAX_REFERENCE_CHARACTERS)
    v.require(len(wait.options) <= MAX_OPTIONS, f"{field}.options", f"at most {MAX_OPTIONS}")
    for index, option in enumerate(wait.options):
        v.length(f"{field}.options[{index}]", option, 1, MAX_OPTION_CHARACTERS)
    is_event = wait.kind == task_pb2.WAIT_KIND_EVENT
    v.length(f"{field}.correlation_id", wait.correlation_id, int(is_event), 200 if is_event else 0)
    v.require("\0" not in wait.correlation_id, f"{field}.correlation_id", "must not contain NUL")
    size = len(wait.arguments_json.encode())
    message = f"at most {MAX_APPROVED_ARGUMENT_BYTES} bytes"
    v.require(size <= MAX_APPROVED_ARGUMENT_BYTES, f"{field}.arguments_json", message)
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
    v.length(f"{prefix}wait_id", answer.wait_id, 1, 64)
    v.require(bool(answer.WhichOneof("answer")), f"{prefix}answer", "must be a decision or a reply")
    message = "must be 64 lower-case hex digits, or empty"
    v.require(not answer.call_digest or bool(_DIGEST.fullmatch(answer.call_digest)), f"{prefix}call_digest", message)
    v.length(f"{prefix}decision", answer.decision, 0, MAX_OPTION_CHARACTERS)
    size = len(answer.reply.encode())
    v.require(size <= MAX_ANSWER_BYTES, f"{prefix}reply", f"at most {MAX_ANSWER_BYTES} bytes")
    v.length(f"{prefix}comment", answer.comment, 0, MAX_COMMENT_CHARACTERS)
    size = len(answer.edited_arguments_json.encode())
    message = f"at most {MAX_APPROVED_ARGUMENT_BYTES} bytes"
    v.require(size <= MAX_APPROVED_ARGUMENT_BYTES, f"{prefix}edited_arguments_json", message)
    is_edit = bool(answer.edited_arguments_json)
    v.require(not is_edit or is_json(answer.edited_arguments_json), f"{prefix}edited_arguments_json", "must be JSON")
    v.between(f"{prefix}extra_budget_tokens", answer.extra_budget_tokens, 0, MAX_TOKENS)
    v.between(f"{prefix}extra_budget_nano_usd", answer.extra_budget_nano_usd, 0, MAX_NANO_USD)


def _signal_fields(request: Any, v: Violations) -> None:
    """Checks a SendSignalRequest, or a ResumeTaskRequest, which has the same fields."""
    v.length("correlation_id", request.correlation_id, 1, 200)
    size = len(request.payload_json.encode())
    v.require(size <= MAX_ANSWER_BYTES, "payload_json", f"at most {MAX_ANSWER_BYTES} bytes")
    v.require(is_json(request.payload_json), "payload_json", "must be JSON")


def _signal(request: checkpoint.SendSignalRequest, v: Violations) -> None:
    _signal_fields(request, v)
    v.length("request_id", request.request_id, 1, 128)
    v.length("actor", request.actor, 1, 200)


def _resume(request: tasks.ResumeTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 0, 128)
    if not request.correlation_id:
        v.uuid("task_id", request.task_id)
        v.require(request.WhichOneof("answer") != "payload_json", "payload_json", "needs a correlation_id")
        check_wait_answer(request, v)
        return
    _signal_fields(request, v)
    v.require(request.WhichOneof("answer") == "payload_json", "answer", "must be a payload_json")
    amounts = ("extra_budget_tokens", "extra_budget_nano_usd")
    for field in ("task_id", "wait_id", "comment", "edited_arguments_json", "call_digest", *amounts):
        v.require(not getattr(request, field), field, "must be empty with a correlation_id")


_WAITS_CHECKS: Final[dict[type, Check]] = {
    tasks.ResumeTaskRequest: _resume,
    checkpoint.SendSignalRequest: _signal,
}


CHECKS: Final[dict[type, Check]] = {
    **_GATEWAY_CHECKS,
    **_WAITS_CHECKS,
}
