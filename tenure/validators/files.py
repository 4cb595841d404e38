"""Requests about tasks' files: the gateway's, and the tools'."""

from __future__ import annotations

from typing import Any

from tenure.v1 import tool_service_pb2 as tools
from tenure.validators.fields import check_task_id
from tenure.validators.violations import Violations

_LONGEST_PATH = 1024
_LONGEST_TOKEN = 16 * 1024
"""A token names a path; deep ones are long."""


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
