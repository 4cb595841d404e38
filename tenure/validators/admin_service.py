"""Checks the requests of operators: those of AdminService, and those of the ledger and the coordinator behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.validators.common import MAX_ID_CHARACTERS, Check, check_duration, check_filter, check_moment
from tenure.validators.rules import WORKER_ID, Violations, bounds

SHA256: Final = re.compile(r"[0-9a-f]{64}")
MAX_WORKERS_A_PAGE: Final = 1000
_WORKERS_TOKEN: Final = re.compile(WORKER_ID.pattern.removesuffix(r"\Z") + rf" .{{1,{MAX_ID_CHARACTERS}}}\Z")

# Calls in doubt and their resolutions.


def check_resolution(resolution: Any, v: Violations, prefix: str = "") -> None:
    """Checks the resolution of a call attempt: of an operator, of the ledger or on its way to the tool service."""
    v.require(resolution.decision.WhichOneof("decision") is not None, f"{prefix}decision", "must be set")


MAX_IDLE_SECONDS: Final = 366 * 24 * 3600.0
_END_STATES: Final = frozenset(
    {
        task_pb2.TASK_STATE_SUCCEEDED,
        task_pb2.TASK_STATE_FAILED,
        task_pb2.TASK_STATE_TIMED_OUT,
        task_pb2.TASK_STATE_CANCELLED,
    }
)


def check_operator_request(request: ledger_pb2.OperatorRequest, v: Violations) -> None:
    v.require(request.WhichOneof("act") is not None, "operator_request.act", "must be set")
    if request.HasField("grant_budget"):
        _check_grant(request.grant_budget, v)
    if request.HasField("close_out"):
        _check_end(request.close_out, v)
    if request.HasField("resolve_call"):
        check_resolution(request.resolve_call, v)
    if request.HasField("begin_wait"):
        _check_wait(request.begin_wait, v)


def _check_grant(grant: Any, v: Violations) -> None:
    v.require(
        bool(grant.extra_tokens or grant.extra_nano_usd), "extra_tokens", "must be set unless extra_nano_usd is set"
    )


def _check_end(close_out: Any, v: Violations) -> None:
    v.require(close_out.to_state in _END_STATES, "to_state", "must be SUCCEEDED, FAILED, TIMED_OUT or CANCELLED")
    is_success = close_out.to_state == task_pb2.TASK_STATE_SUCCEEDED
    v.require(bool(close_out.result) or not is_success, "result", "must be set for SUCCEEDED")


def _check_wait(wait: Any, v: Violations) -> None:
    v.require(wait.HasField("until"), "until", "must be set")
    check_moment("until", wait.until, v)


def _act(request: admin.ActOnTasksRequest, v: Violations) -> None:
    v.require(request.WhichOneof("act") is not None, "act", "must be set")
    v.require(bool(request.filter.ListFields()), "filter", "must have at least one field")
    check_filter(request.filter, v)
    v.require(bool(request.reason) or request.HasField("cancel") or request.dry_run, "reason", "must be set")
    if request.HasField("begin_wait"):
        _check_wait(request.begin_wait, v)


def _prune(request: admin.PruneTasksRequest, v: Violations) -> None:
    v.require(request.WhichOneof("which") is not None, "which", "must be set")
    if request.WhichOneof("which") == "ended_before":
        check_moment("ended_before", request.ended_before, v)


def _list_workers(request: Any, v: Violations) -> None:
    v.require(
        not request.page_token or bool(_WORKERS_TOKEN.match(request.page_token)),
        "page_token",
        "must be the next_page_token of an earlier answer",
    )


def _aging(request: Any, v: Violations) -> None:
    check_duration("idle", request.idle, MAX_IDLE_SECONDS, v)


def _aging_with_leases(request: admin.ListAgingTasksRequest, v: Violations) -> None:
    _aging(request, v)
    check_duration("lease_below", request.lease_below, MAX_IDLE_SECONDS, v)


def _accept_tools(request: Any, v: Violations) -> None:
    names = {tool.name for tool in request.tools}
    v.require(len(names) == len(request.tools), "tools", "must be different tools")


def _check_rule(rule: tool_pb2.ToolRule, v: Violations) -> None:
    v.require(rule.verdict != tool_pb2.RULE_VERDICT_UNSPECIFIED, "tool_rule.verdict", "must be set")


def _set_rule(request: admin.SetToolRuleRequest, v: Violations) -> None:
    v.require(request.HasField("tool_rule"), "tool_rule", "must be set")
    _check_rule(request.tool_rule, v)


def _try_rule(request: admin.TryToolRuleRequest, v: Violations) -> None:
    has_rule = request.HasField("tool_rule")
    v.require(bool(request.name) != has_rule, "tool_rule", "must be set, or the name of a rule: one of the two")
    if has_rule:
        _check_rule(request.tool_rule, v)
    v.require(request.HasField("since_time"), "since_time", "must be set")
    check_moment("since_time", request.since_time, v)


_MOST_STOPS: Final[int] = bounds(admin.ListStopsRequest, "applied").max_items


def check_stops(field: str, stops: Sequence[admin.Stop], v: Violations) -> None:
    """Checks the stops that a service takes over: of the ledger, or of a service that is ahead of it."""
    for index, stop in enumerate(stops[:_MOST_STOPS]):
        v.require(stop.HasField("stop_time"), f"{field}[{index}].stop_time", "must be set")


CHECKS: Final[dict[type, Check]] = {
    admin.ListStopsRequest: lambda request, v: check_stops("applied", request.applied, v),
    admin.SetToolRuleRequest: _set_rule,
    admin.TryToolRuleRequest: _try_rule,
    admin.ResolveInDoubtCallRequest: check_resolution,
    checkpoint.ListAgingRequest: _aging,
    admin.ListAgingTasksRequest: _aging_with_leases,
    admin.ListWorkersRequest: _list_workers,
    admin.GrantBudgetRequest: _check_grant,
    admin.PruneTasksRequest: _prune,
    admin.CloseOutTaskRequest: _check_end,
    admin.BeginWaitRequest: _check_wait,
    admin.AcceptToolsRequest: _accept_tools,
    admin.ActOnTasksRequest: _act,
}
