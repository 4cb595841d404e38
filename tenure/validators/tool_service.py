"""Checks the requests of ToolService."""

from __future__ import annotations

from typing import Final

from tenure.domain.outputs import MAX_OUTPUTS, MAX_URI_CHARACTERS
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.admin_service import check_resolution
from tenure.validators.common import (
    CALL_ID,
    MAX_ARGUMENT_BYTES,
    MAX_NAMED_CALLS,
    MIN_OUTPUT_BYTES,
    Check,
    Violations,
    check_calls,
    check_duration,
    check_frame,
    check_guarded,
    check_task_id,
    check_token,
)
from tenure.validators.task_service import check_copy_files, check_list_files, check_read_file

MAX_CHECKED_NAMES: Final = 1000


def _execute(request: tools.ExecuteRequest, v: Violations) -> None:
    check_token(request.token, v)
    v.require(bool(CALL_ID.match(request.call_id)), "call_id", 'must be "<step>.<index>"')
    v.require(0 < len(request.tool) <= 128, "tool", "must have 1 to 128 characters")
    size = len(request.arguments_json.encode())
    v.require(size <= MAX_ARGUMENT_BYTES, "arguments_json", f"at most {MAX_ARGUMENT_BYTES} bytes")
    v.length("traceparent", request.traceparent, 0, 128)
    fits = request.output_limit_bytes == 0 or request.output_limit_bytes >= MIN_OUTPUT_BYTES
    v.require(fits, "output_limit_bytes", f"must be {MIN_OUTPUT_BYTES} or more")
    check_duration("timeout", request.timeout, MAX_PHASE_SECONDS, v)
    if request.HasField("resolution"):
        check_resolution(request.resolution, v)


def _calls(request: tools.ListCallsRequest, v: Violations) -> None:
    check_calls(request, v)
    v.require(len(request.call_ids) <= MAX_NAMED_CALLS, "call_ids", f"at most {MAX_NAMED_CALLS}")
    for index, call_id in enumerate(request.call_ids):
        v.require(bool(CALL_ID.match(call_id)), f"call_ids[{index}]", 'must be "<step>.<index>"')


def _names(request: tools.CheckToolNamesRequest, v: Violations) -> None:
    v.require(len(request.names) <= MAX_CHECKED_NAMES, "names", f"at most {MAX_CHECKED_NAMES}")
    for index, name in enumerate(request.names):
        v.length(f"names[{index}]", name, 1, 128)


def _digests(request: tools.DigestFilesRequest, v: Violations) -> None:
    check_guarded(request, v)
    v.require(len(request.paths) <= MAX_OUTPUTS, "paths", f"at most {MAX_OUTPUTS}")
    for index, path in enumerate(request.paths):
        v.length(f"paths[{index}]", path, 1, MAX_URI_CHARACTERS)


CHECKS: Final[dict[type, Check]] = {
    tools.DigestFilesRequest: _digests,
    tools.ListToolsRequest: check_guarded,
    tools.CheckToolNamesRequest: _names,
    tools.ExecuteRequest: _execute,
    tools.ExecuteStreamRequest: check_frame("calls"),
    tools.FenceRequest: check_guarded,
    tools.ForgetRequest: check_guarded,
    tools.ToolServiceListFilesRequest: check_list_files,
    tools.ToolServiceReadFileRequest: check_read_file,
    tools.CopyFilesRequest: check_copy_files,
    tools.ListCallsRequest: _calls,
    tools.ListRefusedCallsRequest: check_task_id,
}
