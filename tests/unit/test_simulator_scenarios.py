"""Scenario files: the errors of a wrong one, and the answers of a right one."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from devstack.search_stub import search
from devstack.simulator.delivery import compose
from devstack.simulator.scenario import (
    SHIPPED,
    ScenarioError,
    ScenarioLibrary,
    Turn,
    load_scenario,
)
from devstack.simulator.simulator import ModelSimulator
from tenure.testing.script import ScriptedModel
from tests.support.patience import PATIENCE_SECONDS

BUILT_IN_ARGUMENTS = {
    "web_search": {"query", "num_results"},
    "execute_python": {"code"},
    "read_file": {"path"},
    "write_file": {"path", "content"},
    "list_files": {"path"},
    "append_record": {"file", "line"},
    "append_record_unsafe": {"file", "line"},
    "request_approval": {"question", "context", "reference"},
    "ask_user": {"question"},
    "wait_external": {"correlation_id", "timeout_seconds"},
    "spawn_sub_agents": {"goals", "deadline_seconds"},
}
OPTIONAL_ARGUMENTS = {"delay_ms"}


def calls_of(name: Any) -> Any:
    scenario = load_scenario(SHIPPED / f"{name}.yaml")
    return [call for turn in scenario.turns for call in turn.calls]


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def write_and_load(text: Any) -> Any:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return load_scenario(path)

    return write_and_load


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("7", "the file as a whole", "is not of type 'array'"),
        ("window_tokens: 7", "the file as a whole", "'turns' is a required property"),
        ("turns: []", "turns", "should be non-empty"),
        ("{window_tokens: 0, turns: [{text: a}]}", "window_tokens", "less than the minimum"),
        ("turns:\n- text: a\n- txt: b", "turn 1", "'txt' was unexpected"),
        ("[]", "the file as a whole", "should be non-empty"),
        ("- text: a\n- txt: b", "turn 1", "'txt' was unexpected"),
        ("- text: 7", "turn 0, text", "7 is not of type 'string'"),
        ("- calls: [{name: f}]", "turn 0, calls.0", "'arguments' is a required property"),
        ("- {text: a, stop_reason: done}", "turn 0, stop_reason", "'done' is not one of"),
        ("- {text: a, fault: {times: 2}}", "turn 0, fault", "is not valid under any of the given schemas"),
        ("- {text: a, fault: {status: 429, broken_stream: 1}}", "turn 0, fault", "valid under each of"),
        ("- {text: a, fault: {status: 200}}", "turn 0, fault.status", "less than the minimum"),
        ("- text: a\n- text: '{{password}}'", "turn 1", "unknown reference {{password}}"),
        ("- calls: [{name: f, arguments: {a: ['{{result.1}}']}}]\n- text: a", "turn 0", "unknown reference"),
        ("- calls: [{name: f, arguments: {}}]", "turn 0", "last turn must not call tools"),
        ("- {text: a, stop_reason: tool_use}", "turn 0", "needs calls"),
        ("- {text: a, repeat: 100000}\n- {text: b, repeat: 2}", "mine.yaml", "at most 100000"),
        ("- text: [", "mine.yaml", "while parsing"),
        ("- text: a: b", "mine.yaml", "- text: a: b"),  # the line itself
    ],
)
def test_invalid_file_is_refused_with_its_turn(load: Any, text: str, place: str, words: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(text)
    assert "mine.yaml" in str(caught.value)
    assert place in str(caught.value)
    assert words in str(caught.value)


def test_a_repeated_turn_is_played_as_often_as_stated(load: Any) -> None:
    scenario = load("- {text: again, repeat: 3}\n- text: end")
    assert [scenario.turn(index).text for index in range(6)] == ["again"] * 3 + ["end"] * 3


def test_a_literal_turn_keeps_double_braces(load: Any) -> None:
    """A recorded answer of a real model may have them in its text and in the arguments of its calls."""
    call = "calls: [{name: f, arguments: {template: '{{name}}'}}]"
    scenario = load(f"- {{literal: true, text: 'Hello {{{{goal}}}}', {call}}}\n- text: '{{{{goal}}}}'")
    body = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "Greet"}]}
    text, written = compose(scenario.turn(0), body).blocks
    assert (text.text, written.text) == ("Hello {{goal}}", '{"template": "{{name}}"}')
    assert [block.text for block in compose(scenario.turn(1), body).blocks] == ["Greet"]


def test_own_file_replaces_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").write_text("- text: mine")
    scenario = ScenarioLibrary([tmp_path]).find("sim-hello")
    assert scenario is not None
    assert scenario.turn(0).text == "mine"


def test_any_real_models_name_plays_research() -> None:
    library = ScenarioLibrary()
    research = library.find("claude-opus-4-8", tools=[*BUILT_IN_ARGUMENTS])
    assert research is not None
    assert research.name == "research"
    assert library.find("claude-opus-4-8", tools=["refund"]) is None
    assert library.find("sim-no-such-scenario", tools=["refund"]) is None


def test_steps_call_their_tool_n_times_and_end() -> None:
    scenario = ScenarioLibrary().find("sim-steps-1000-write_file-5ms-200b")
    assert scenario is not None
    turns = [scenario.turn(index) for index in range(1002)]
    assert [len(turn.calls) for turn in turns] == [1] * 1000 + [0, 0]
    assert {call.name for turn in turns for call in turn.calls} == {"write_file"}
    assert {turn.latency_ms for turn in turns} == {5}
    assert {len(turn.text) for turn in turns[:1000]} == {200}
    assert turns[1].calls != turns[2].calls


def test_a_first_token_is_part_of_the_latency(tmp_path: Path) -> None:
    path = tmp_path / "late.yaml"
    path.write_text("- {text: late, latency_ms: 2000, first_token_ms: 2001}")
    with pytest.raises(ScenarioError, match="first_token_ms"):
        load_scenario(path)
    path.write_text("- {text: late, latency_ms: 2000, first_token_ms: 2000}")
    assert load_scenario(path).turn(0).first_token_ms == 2000


def test_a_process_reads_the_shipped_scenarios_once() -> None:
    first, second = ScenarioLibrary(), ScenarioLibrary()
    assert first.find("sim-hello") is second.find("sim-hello")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios_call_built_in_tools(path: Any) -> None:
    for turn in load_scenario(path).turns:
        for call in turn.calls:
            assert set(call.arguments) - OPTIONAL_ARGUMENTS == BUILT_IN_ARGUMENTS[call.name]


def test_research_uses_every_kind_of_tool_and_some_at_once() -> None:
    calls = calls_of("research")
    assert 10 <= len(calls) <= 20
    assert {call.name for call in calls} == {"web_search", "execute_python", "write_file", "read_file", "list_files"}
    assert any(len(turn.calls) > 1 for turn in load_scenario(SHIPPED / "research.yaml").turns)


def test_searches_of_research_have_results() -> None:
    for call in calls_of("research"):
        if call.name == "web_search":
            first = search(call.arguments["query"], call.arguments["num_results"])[0]
            assert "library.example" not in first.url


@pytest.mark.parametrize("name", ["research", "demo", "parallel-tools"])
def test_the_code_of_scenarios_runs_in_plain_python(name: str, tmp_path: Path) -> None:
    codes = [call.arguments["code"] for call in calls_of(name) if call.name == "execute_python"]
    assert codes
    for code in codes:
        command = [sys.executable, "-I", "-W", "error", "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=tmp_path, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == []


def test_the_prices_in_research_are_those_its_code_computes() -> None:
    code = next(call.arguments["code"] for call in calls_of("research") if call.name == "execute_python")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    written = {
        call.arguments["path"]: call.arguments["content"] for call in calls_of("research") if call.name == "write_file"
    }
    rows = [" | ".join(line.split()) for line in output.getvalue().splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == 5
    for row in rows:
        assert row in written["research/pricing.md"]
        assert row in written["competitive-analysis-final.md"]


def test_one_side_effect_of_demo_is_planned_twice() -> None:
    lines = [(call.name, call.arguments["line"]) for call in calls_of("demo") if call.name.startswith("append_record")]
    repeated = [line for line in lines if lines.count(line) > 1]
    assert repeated == [("append_record_unsafe", "unsafe-2: order 1002 placed")] * 2
    assert {name for name, _ in lines} == {"append_record", "append_record_unsafe"}
    assert 8 <= len(yaml.safe_load((SHIPPED / "demo.yaml").read_text())) <= 10


MESSAGES = [
    {"role": "user", "content": "the goal"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "42"}]}],
    },
    {"role": "user", "content": "and now?"},
]


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{turn}}", "1"),
        ("{{goal}}: {{ last_user_text }}", "the goal: and now?"),
        ("<{{result.0.0}}>", "<42>"),
        ("<{{result.0.1}}{{result.7.0}}>", "<>"),
        ("{plain}", "{plain}"),
    ],
)
def test_references_are_filled_from_the_conversation(template: str, filled: str) -> None:
    reply = compose(Turn(text=template), {"model": "m", "max_tokens": 100, "messages": MESSAGES})
    assert reply.blocks[0].text == filled


def test_a_filled_reference_is_not_filled_again() -> None:
    messages = [{"role": "user", "content": "{{turn}}"}]
    reply = compose(Turn(text="{{goal}}"), {"model": "m", "max_tokens": 100, "messages": messages})
    assert reply.blocks[0].text == "{{turn}}"


async def test_a_reset_forgets_the_script_of_each_model() -> None:
    """Of a shipped model too: the next test of the same stack must not play the script of the one before."""
    async with ModelSimulator() as simulator:
        model = ScriptedModel(simulator.url.removeprefix("http://"))
        for name in ("sim-shop", "sim-hello"):
            await asyncio.to_thread(partial(model.script, ["Refunded."], model=name))
        assert "shop" in simulator.library.names
        await asyncio.to_thread(model.reset)
        assert "shop" not in simulator.library.names
        assert simulator.library.find("sim-hello") == load_scenario(SHIPPED / "hello.yaml")
