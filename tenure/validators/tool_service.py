"""Checks the requests of ToolService."""

from __future__ import annotations

import re
from typing import Final

from tenure.domain.texts import MAX_KEPT_BYTES, MAX_PART_BYTES
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.domain.tools import MAX_OWN_DESCRIPTION, MAX_OWN_OUTPUT_BYTES, MAX_OWN_SCHEMA, OWN_STATUSES, OWN_TOOL_NAME
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.admin_service import check_resolution, check_stops
from tenure.validators.common import MIN_OUTPUT_BYTES, Check, check_duration, check_frame, check_guarded, check_token
from tenure.validators.rules import Violations
from tenure.validators.task_service import check_copy_files, check_files
from tenure.wire.common import OUTCOME_STATUSES

_UNDOES: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9]{1,15}\.[0-9]{1,15}\Z")
_OWN_STATUSES: Final = frozenset(map(OUTCOME_STATUSES.to_wire, OWN_STATUSES))
_ONE_OF: Final = f"must be one of {', '.join(sorted(OWN_STATUSES))}"


def _execute(request: tools.ExecuteRequest, v: Violations) -> None:
    check_token(request.token, v)
    fits = request.output_limit_bytes == 0 or request.output_limit_bytes >= MIN_OUTPUT_BYTES
    v.require(fits, "output_limit_bytes", f"must be {MIN_OUTPUT_BYTES} or more")
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)
    if request.HasField("resolution"):
        check_resolution(request.resolution, v, "resolution.")
    _undone_call(request.undoes, v, "undoes")
    if request.HasField("own_tool"):
        _own_tool(request, v)
    if request.HasField("own_outcome"):
        _own_outcome(request, v)


def _fence(request: tools.FenceRequest, v: Violations) -> None:
    check_guarded(request, v)
    for place, resolved in enumerate(request.resolved_calls):
        check_resolution(resolved.resolution, v, f"resolved_calls[{place}].resolution.")
        _undone_call(resolved.undoes, v, f"resolved_calls[{place}].undoes")


def _undone_call(undoes: str, v: Violations, field: str) -> None:
    v.require(not undoes or bool(_UNDOES.match(undoes)), field, 'must be "<task_id>/<call_id>"')


def _own_tool(request: tools.ExecuteRequest, v: Violations) -> None:
    tool = request.own_tool
    v.require(bool(OWN_TOOL_NAME.match(tool.name)), "own_tool.name", "must be 1 to 64 of a-z, A-Z, 0-9, _ and -")
    fits = len(tool.description) <= MAX_OWN_DESCRIPTION
    v.require(fits, "own_tool.description", f"must have 0 to {MAX_OWN_DESCRIPTION} characters")
    fits = 2 <= len(tool.input_schema_json) <= MAX_OWN_SCHEMA
    v.require(fits, "own_tool.input_schema_json", f"must have 2 to {MAX_OWN_SCHEMA} characters")
    v.require(tool.name == request.tool, "own_tool.name", "must be the tool of the call")
    check_duration("own_tool.timeout", tool.timeout, MAX_PHASE_SECONDS, v)
    v.require(tool.timeout.seconds > 0 or tool.timeout.nanos > 0, "own_tool.timeout", "must be positive")
    fits = MIN_OUTPUT_BYTES <= tool.output_limit_bytes <= MAX_OWN_OUTPUT_BYTES
    limits = f"must be {MIN_OUTPUT_BYTES} to {MAX_OWN_OUTPUT_BYTES}"
    v.require(fits, "own_tool.output_limit_bytes", limits)


def _own_outcome(request: tools.ExecuteRequest, v: Violations) -> None:
    outcome = request.own_outcome
    v.require(request.HasField("own_tool"), "own_outcome", "is only for a call with own_tool")
    v.require(outcome.status in _OWN_STATUSES, "own_outcome.status", _ONE_OF)
    check_duration("own_outcome.duration", outcome.duration, MAX_PHASE_SECONDS, v)


def _keep(request: tools.KeepContentRequest, v: Violations) -> None:
    check_guarded(request, v)
    v.require(1 <= request.size_bytes <= MAX_KEPT_BYTES, "size_bytes", f"must be 1 to {MAX_KEPT_BYTES}")
    v.require(1 <= len(request.part) <= MAX_PART_BYTES, "part", f"must have 1 to {MAX_PART_BYTES} bytes")
    within = 0 <= request.offset <= request.size_bytes - len(request.part)
    v.require(within, "offset", "must be 0 or more, and the part must end within size_bytes")


def _read_content(request: tools.ReadContentRequest, v: Violations) -> None:
    check_guarded(request, v)
    v.require(bool(request.path.strip("./")), "path", "must be the path of a file")
    v.require(0 <= request.offset <= MAX_KEPT_BYTES, "offset", f"must be 0 to {MAX_KEPT_BYTES}")


CHECKS: Final[dict[type, Check]] = {
    tools.KeepContentRequest: _keep,
    tools.ReadContentRequest: _read_content,
    tools.DigestFilesRequest: check_guarded,
    tools.ListToolsRequest: check_guarded,
    tools.SetStopsRequest: lambda request, v: check_stops("stops", request.stops, v),
    tools.ExecuteRequest: _execute,
    tools.ExecuteStreamRequest: check_frame("calls"),
    tools.FenceRequest: _fence,
    tools.ForgetRequest: check_guarded,
    tools.CopyFilesRequest: check_copy_files,
    tools.PutFilesRequest: check_files,
}
