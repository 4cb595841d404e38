"""What the gateway serves: TaskService and AdminService."""

from __future__ import annotations

from typing import Final

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_service_pb2 as tasks
from tenure.validators.conversations import check_fork, check_send
from tenure.validators.fields import (
    check_bills,
    check_calls,
    check_changes,
    check_duration,
    check_entries,
    check_list,
    check_task_id,
    check_watch,
)
from tenure.validators.files import check_list_files, check_read_file
from tenure.validators.limits import MAX_WAIT_SECONDS
from tenure.validators.specs import check_spec
from tenure.validators.violations import Check, Violations


def _submit(request: tasks.SubmitTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 0, 128)
    check_spec(request, v)


def _wait(request: tasks.WaitTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    check_duration("timeout", request.timeout, MAX_WAIT_SECONDS, v)


def _cancel(request: tasks.CancelTaskRequest, v: Violations) -> None:
    check_task_id(request, v)
    v.length("reason", request.reason, 0, 1000)


CHECKS: Final[dict[type, Check]] = {
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
