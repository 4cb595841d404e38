"""`tenure top`: one screen with the tasks that need a person first, and without what the caller may not read."""

from __future__ import annotations

import io
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tenure.cli.main import cli
from tenure.cli.top import Frame, screen
from tenure.domain.errors import PermissionDenied
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tenant_service_pb2 as tenants
from tests.unit.stubbed_calls import answer_calls

RUNNING, WAITING, FAILED = (
    *(task_pb2.TASK_STATE_RUNNING, task_pb2.TASK_STATE_WAITING_USER),
    task_pb2.TASK_STATE_FAILED,
)
COUNTS = api.CountTasksResponse(
    counts=[
        api.CountTasksResponse.StateCount(state=RUNNING, count=1),
        api.CountTasksResponse.StateCount(state=FAILED, count=10_000, at_least=True),
    ]
)
WORKERS = [admin.Worker(worker_id="worker-1", claim_count=1)]
SPEND = [
    tenants.UsageSum(key="small", calls=2, nano_usd=250_000_000, usage=task_pb2.TokenUsage(input_tokens=900)),
    tenants.UsageSum(key="large", calls=1, nano_usd=1_000_000_000, usage=task_pb2.TokenUsage(output_tokens=100)),
]


def task(state: task_pb2.TaskState.ValueType, goal: str) -> task_pb2.Task:
    return task_pb2.Task(task_id=f"01a222a2-7e6{state}-{goal}", state=state, spec=task_pb2.TaskSpec(goal=goal))


def drawn(frame: Frame, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(frame, width))
    return console.export_text().splitlines()


def test_a_screen_has_counts_workers_spend_and_tasks() -> None:
    frame = Frame(COUNTS, [task(RUNNING, "a long goal " * 20)], WORKERS, SPEND)
    counts, workers, spend, _, head, line = drawn(frame, 60)
    assert counts == "RUNNING 1  FAILED 10,000+"
    assert workers == "1 worker: worker-1 1"
    assert spend == "last 24 h: $1.25 · 1,000 tokens · 3 calls · large, small"
    assert head.split()[-1] == "GOAL"
    assert line.endswith("…")
    assert max(map(len, (head, line))) <= 60


def test_waits_for_a_person_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(_request: Any) -> api.CountTasksResponse:
        return COUNTS

    async def tasks(request: api.ListTasksRequest) -> api.ListTasksResponse:
        if RUNNING not in request.filter.states:
            return api.ListTasksResponse(tasks=[task(FAILED, "ended")])
        return api.ListTasksResponse(tasks=[task(RUNNING, "runs"), task(WAITING, "waits")])

    async def refused(_request: Any) -> Any:
        raise PermissionDenied("not yours")

    answer_calls(monkeypatch, "tasks", "CountTasks", count)
    answer_calls(monkeypatch, "tasks", "ListTasks", tasks)
    answer_calls(monkeypatch, "admin", "ListWorkers", refused)
    answer_calls(monkeypatch, "tenants", "GetTenantUsage", refused)
    result = CliRunner().invoke(cli, ["--address", "127.0.0.1:1", "top"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[-1] for line in lines[-3:]] == ["waits", "runs", "ended"]
    assert len(lines) == 6, "neither workers nor spend, which the caller may not read"
