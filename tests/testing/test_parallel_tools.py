"""The tools of one answer run at the same time, and after a crash only those run again that had not ended."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tenure import (
    AssistantMessageEvent,
    LiveTextEvent,
    TaskState,
    ToolIntentEvent,
    ToolOutcomeEvent,
    ToolsDefinedEvent,
)
from tenure.domain.tools import EffectClass
from tenure.testing import TaskHandle, Tenure, tool, turn
from tests.testing.parallel_agents import MODULES

pytestmark = pytest.mark.server
AGENTS = ["pydantic", "openai"]
PATIENCE_SECONDS = 60.0


def submit(tenure: Tenure, folder: Path, agent: str) -> TaskHandle[Any]:
    return tenure.submit("Do both", agent=agent, input={"trace": str(folder / "trace"), "gate": str(folder / "gate")})


def runs(folder: Path) -> list[str]:
    return sorted((folder / "trace").read_text().splitlines())


def calls(task: TaskHandle[Any]) -> list[str]:
    return [each.call_id for each in task.entries() if isinstance(each, ToolIntentEvent)]


@pytest.mark.faults
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("second", ["slow", "other"])
def test_two_tools_of_an_answer_run_at_once(tenure: Tenure, tmp_path: Path, agent: str, second: str) -> None:
    """Both have begun while neither can end."""
    tenure.model.script([[tool("slow", name="gated"), tool(second, name="gated")], "Both are done."])
    tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, agent)
    tenure.go()
    ends_at, trace = time.monotonic() + PATIENCE_SECONDS, tmp_path / "trace"
    while not trace.exists() or runs(tmp_path) != ["gated 2.0", "gated 2.1"]:
        assert time.monotonic() < ends_at, task.story()
        time.sleep(0.05)
    (tmp_path / "gate").touch()
    assert task.result().value == "Both are done."
    assert runs(tmp_path) == ["gated 2.0", "gated 2.1"]
    assert calls(task) == ["2.0", "2.1"]


@pytest.mark.faults
@pytest.mark.parametrize("agent", AGENTS)
def test_a_kill_in_the_middle_repeats_only_the_unfinished(tenure: Tenure, tmp_path: Path, agent: str) -> None:
    tenure.model.script([[tool("slow", name="gated"), tool("slow", name="quick")], "Both are done."])
    worker = tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, agent)
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not [each for each in task.entries() if isinstance(each, ToolOutcomeEvent)]:
        assert time.monotonic() < ends_at, task.story()
        time.sleep(0.05)
    worker.kill()
    (tmp_path / "gate").touch()
    tenure.worker(functions=MODULES)
    assert task.result().value == "Both are done."
    assert runs(tmp_path) == ["gated 2.0", "gated 2.0", "quick 2.1"]
    assert len(tenure.model.requests) == 2


@pytest.mark.faults
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("at", ["after intent 2.0", "after own-tool 2", "after execute 2.0", "after model 3"])
def test_a_kill_around_parallel_calls(tenure: Tenure, tmp_path: Path, agent: str, at: str) -> None:
    tenure.model.script([[tool("slow", name="quick"), tool("other", name="quick")], "Both are done."])
    worker = tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, agent)
    worker.kill(at=at)
    tenure.worker(functions=MODULES)
    assert task.result().value == "Both are done."
    assert sorted({*runs(tmp_path)}) == ["quick 2.0", "quick 2.1"]
    assert calls(task) == ["2.0", "2.1"]


@pytest.mark.faults
def test_an_inline_tool_runs_between_the_others(tenure: Tenure, tmp_path: Path) -> None:
    given = [
        tool("slow", name="quick"),
        tool("inline", name="c"),
        tool("slow", name="quick"),
        tool("other", name="quick"),
    ]
    tenure.model.script([given, "All are done."])
    worker = tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, "pydantic")
    worker.kill(at="after execute 3")
    tenure.worker(functions=MODULES)
    assert task.result().value == "All are done."
    assert calls(task) == ["2.0", "3.0", "3.1"]


def test_a_call_waits_for_a_person_beside_others(tenure: Tenure, tmp_path: Path) -> None:
    tenure.model.script([[tool("careful", name="quick"), tool("slow", name="quick")], "Both are done."])
    tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, "pydantic")
    task.wait_until(TaskState.WAITING_USER)
    assert runs(tmp_path) == ["quick 2.1"]
    task.approve()
    assert task.result().value == "Both are done."
    assert runs(tmp_path) == ["quick 2.0", "quick 2.1"]


@pytest.mark.faults
@pytest.mark.parametrize("agent", AGENTS)
def test_watchers_see_the_tools_with_schema_and_effect(tenure: Tenure, tmp_path: Path, agent: str) -> None:
    tenure.model.script([tool("slow", name="quick"), tool("other", name="quick"), "Both are done."])
    tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, agent)
    task.wait()
    defined = [each for each in task.entries() if isinstance(each, ToolsDefinedEvent)]
    tools = {each.name: each for each in defined[-1].tools}
    assert (tools["slow"].effect_class, tools["other"].effect_class) == (EffectClass.KEYED, EffectClass.PURE)
    assert json.loads(tools["slow"].input_schema_json)["properties"]["name"]["type"] == "string"
    assert len(defined) == 1  # the first model call, and no call changes what it was offered
    assert "append_record" not in tools  # no model was offered those of the tool service


@pytest.mark.faults
@pytest.mark.parametrize("agent", AGENTS)
def test_text_is_live(tenure: Tenure, tmp_path: Path, agent: str) -> None:
    words = "word " * 200
    tenure.model.script([turn(words, delay=8.0)])
    tenure.worker(functions=MODULES)
    task = submit(tenure, tmp_path, agent)
    pieces: list[LiveTextEvent] = []
    answer = None
    for event in task.events():
        if isinstance(event, LiveTextEvent):
            pieces.append(event)
        elif isinstance(event, AssistantMessageEvent):
            answer = event
            break
    assert answer is not None
    assert answer.text == words
    assert len(pieces) > 2, "the text came at the end"
    assert words.startswith("".join(piece.text for piece in pieces)[:20])
    assert task.result().value == words
