"""A task of a real stack with a person, a sub-agent and a message, and its ledger as a file: what a replay reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result

from tenure import TaskState
from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.sdk.events import TransitionEvent
from tenure.testing import TaskHandle, Tenure, tool, turn

ASK: Final = tool("request_approval", question="May I begin?")
SPAWN: Final = turn("I heard: {{last_user_text}}", tool("spawn_sub_agents", goals=["child count the boxes"]))
APPEND: Final = tool("append_record", file="books", line="3 boxes")
TOOLS: Final = ["request_approval", "spawn_sub_agents", "append_record"]
EDITED: Final = {"file": "books", "line": "3 blue boxes"}


def recorded_run(tenure: Tenure) -> TaskHandle[Any]:
    """Runs a task: a question, a message meanwhile, a sub-agent, and a call whose arguments a person changes."""
    tenure.model.script([ASK, SPAWN, APPEND, "Counted. {{result.2.0}}"], model="sim-parent")
    tenure.model.script(["3 boxes"], model="sim-child")
    tenure.worker()
    task = tenure.submit("parent Count", model="sim-by-goal", tools=TOOLS, approve_tools=["append_record"])
    task.wait_until(TaskState.WAITING_USER)
    task.send("Only the blue ones.")
    task.approve()
    waits = (event.wait for event in task.events() if isinstance(event, TransitionEvent) and event.wait is not None)
    task.approve(next(wait for wait in waits if wait.tool == "append_record"), arguments=EDITED)
    assert "A person changed the arguments of append_record" in task.result().text
    return task


def command(tenure: Tenure, *words: str) -> Result:
    data = str(tenure.stack._folder / "data")
    return CliRunner().invoke(cli, ["--data", data, "--tenant", tenure.tenant, *words], catch_exceptions=False)


def exported(tenure: Tenure, task: TaskHandle[Any], folder: Path) -> Path:
    """Writes the ledger as docs/testing.md says: `tenure tasks entries TASK --json -v > FILE`."""
    done = command(tenure, "tasks", "entries", task.id, "--json", "-v")
    assert done.exit_code == Exit.OK, done.output
    path = folder / "count.jsonl"
    path.write_text(done.stdout, encoding="utf-8")
    return path
