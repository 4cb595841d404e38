"""`tenure tasks trace` draws the waterfall of a ledger."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from tenure.cli.output import SafeConsole
from tenure.cli.trace import _Waterfall
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import OutcomeStatus
from tenure.domain.waits import Wait, WaitKind
from tests.unit.test_traces import QUEUED, SECOND, Writer


def drawn(writer: Writer) -> list[str]:
    stream = io.StringIO()
    context: Any = SimpleNamespace(console=SafeConsole(file=stream, width=110, highlight=False, markup=False))
    _Waterfall(writer.spans(), writer.ledger[-1][1] + 3 * SECOND, 110).show(context)
    return stream.getvalue().splitlines()


def test_a_kill_and_a_takeover_are_drawn() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().answer().call("1.0").move(QUEUED, Reason.WORKER_LOST).claim("worker-2")
    lines = drawn(writer.outcome("1.0", OutcomeStatus.FAILED).ask(2))
    names = [line.split("  ━")[0].split("  ┄")[0].split("  ◆")[0].rstrip() for line in lines]
    assert names[:-1] == [
        "invoke_agent messages",
        "  queued SUBMITTED",
        "  chat sim-a",
        "  execute_tool mail FAILED",
        "  queued WORKER_LOST",
        "  takeover worker-1 → worker-2 (WORKER_LOST)",
        "  chat sim-a",
    ]
    assert "▸" in lines[0]
    assert lines[-2].endswith("▸   3 s")
    assert lines[-1].startswith("6 spans, 12 s, trace ")


def test_a_wait_is_below_its_call() -> None:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().answer().call("1.0", "ask_user")
    wait = Wait(WaitKind.QUESTION, "1.0", wait_id="w")
    lines = drawn(writer.move(TaskState.WAITING_USER, Reason.ANSWER_REQUESTED, wait=wait))
    assert [line[:30].rstrip() for line in lines[3:5]] == ["  execute_tool ask_user", "    wait question ANSWER_REQUE"]
    assert "┄" in lines[4]


def test_a_tools_name_moves_no_cursor() -> None:
    writer = Writer().claim("worker-1")
    assert "\x1b" not in "".join(drawn(writer.call("1.0", "mail\x1b[2J")))
