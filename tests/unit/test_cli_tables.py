"""The tables of commands, as they are printed."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from tenure.cli.main import cli
from tenure.cli.output import PIPE_WIDTH, SafeConsole
from tenure.cli.trace import Waterfall
from tenure.cli.waits import wait_table
from tenure.client import Client
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import OutcomeStatus
from tenure.domain.waits import Wait, WaitKind
from tenure.v1 import admin_service_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration, timestamp
from tests.unit.golden_files import compare_with_golden
from tests.unit.stubbed_calls import answer_calls
from tests.unit.test_traces import QUEUED, SECOND, Writer

LONG_NAME = "crm__" + "a_very_long_name_of_a_tool_" * 2


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["--address", "127.0.0.1:1", *arguments])
    return result.stdout + result.stderr


def offered_tools() -> list[tool_pb2.OfferedTool]:
    move = tool_pb2.ToolDefinition(
        name="stock__move_stock",
        description="Move [b]items[/b].\n\nBack again with a negative delta. " + "More of it. " * 30,
        input_schema_json='{"type":"object","properties":{"item":{"type":"string"}}}',
        timeout=duration(90),
        output_limit_bytes=8000,
        effect_class=tool_pb2.EFFECT_CLASS_KEYED,
    )
    crm = tool_pb2.ToolDefinition(name=LONG_NAME, description="x" * 500, effect_class=tool_pb2.EFFECT_CLASS_UNSAFE)
    return [
        tool_pb2.OfferedTool(source="crm", definition=crm),
        tool_pb2.OfferedTool(source="stock", definition=move),
    ]


def tool_sources() -> list[tool_pb2.ToolSource]:
    ago = timestamp(datetime.now(UTC) - timedelta(minutes=10, seconds=5))
    away = tool_pb2.ToolSource(
        name="stock",
        kind=tool_pb2.TOOL_SOURCE_KIND_PROVIDER,
        change_time=ago,
        tools=4,
        problems=["'a [b]' is left out: there are two tools of this name"],
        problem_count=3,
        last_error="[red]gone",
        last_error_time=ago,
    )
    note = tool_pb2.ToolSource(name="note", kind=tool_pb2.TOOL_SOURCE_KIND_HTTP, linked=True, change_time=ago, tools=1)
    return [away, note]


def test_tables_of_tools_are_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tools(_client: Client) -> admin_service_pb2.ListOfferedToolsResponse:
        return admin_service_pb2.ListOfferedToolsResponse(tools=offered_tools())

    async def sources(_request: Any) -> admin_service_pb2.ListToolSourcesResponse:
        return admin_service_pb2.ListToolSourcesResponse(sources=tool_sources(), instance="tools-1")

    monkeypatch.setattr(Client, "tools", tools)
    answer_calls(monkeypatch, "admin", "ListToolSources", sources)
    commands = ("tools list", "tools show stock__move_stock", "tools show stock__move_stokc", "tools show zzz")
    texts = {command: run(*command.split()) for command in (*commands, "tools sources")}
    compare_with_golden("tools.txt", texts)


def test_a_wait_takes_one_line() -> None:
    """It took several at 80 columns, also in a pipe."""
    wait = task_pb2.Wait(wait_id="w8", kind=task_pb2.WAIT_KIND_APPROVAL, options=["approve", "deny"], assignee="ann")
    wait.question, wait.begin_time.seconds, wait.deadline_time.seconds = "May I buy it?\n" * 40, 1, 1
    wait.next_step.assignee, wait.next_step_time.seconds = "bert " * 20, 1
    listed = [
        task_pb2.Task(task_id=f"01a2025d-5126-7000-8000-00000000000{n}", state=task_pb2.TASK_STATE_WAITING_USER)
        for n in range(2)
    ]
    listed[0].wait.CopyFrom(wait)
    listed[1].reason, listed[1].update_time.seconds = Reason.TOOL_IN_DOUBT, 1
    for width in (80, PIPE_WIDTH):
        console = SafeConsole(file=io.StringIO(), width=width, highlight=False, markup=False)
        console.print(wait_table(width, listed))
        header, *rows = str(cast("io.StringIO", console.file).getvalue()).splitlines()
        assert len(rows) == 2
        assert header.split()[-2:] == ["WAITS", "FOR"]
        assert "May I buy it?" in rows[0]


def drawn(writer: Writer) -> str:
    context: Any = SimpleNamespace(console=SafeConsole(file=io.StringIO(), width=110, highlight=False, markup=False))
    Waterfall(writer.spans(), writer.ledger[-1][1] + 3 * SECOND, 110).show(context)
    return str(context.console.file.getvalue())


def test_waterfalls_are_the_golden_file() -> None:
    taken_over = Writer().claim("worker-1")
    taken_over.step = 1
    taken_over.ask().answer().call("1.0").move(QUEUED, Reason.WORKER_LOST).claim("worker-2")
    taken_over.outcome("1.0", OutcomeStatus.FAILED).ask(2)
    waiting = Writer().claim("worker-1")
    waiting.step = 1
    waiting.ask().answer().call("1.0", "ask_user")
    waiting.move(TaskState.WAITING_USER, Reason.ANSWER_REQUESTED, wait=Wait(WaitKind.QUESTION, "1.0", wait_id="w"))
    compare_with_golden("waterfalls.txt", {"a takeover": drawn(taken_over), "a wait": drawn(waiting)})


@pytest.mark.parametrize(
    ("tasks", "dry_run", "text"),
    [
        (500, True, "500 tasks or more would be pruned"),
        (499, True, "499 tasks would be pruned"),
        (500, False, "500 tasks pruned; their bills stay"),
    ],
)
def test_prune_reports_a_cut_preview(monkeypatch: pytest.MonkeyPatch, tasks: int, dry_run: bool, text: str) -> None:
    async def pruned(request: admin_service_pb2.PruneTasksRequest) -> admin_service_pb2.PruneTasksResponse:
        assert (request.dry_run, request.limit) == (dry_run, 500)
        return admin_service_pb2.PruneTasksResponse(task_ids=[f"task-{number}" for number in range(tasks)])

    answer_calls(monkeypatch, "admin", "PruneTasks", pruned)
    options = ["--dry-run"] if dry_run else []
    assert run("admin", "prune", "--older-than", "1d", "--reason", "r", *options).splitlines()[-1] == text
