"""Conversations that were made shorter: how the simulator knows where in its scenario they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devstack.simulator.scenario import Scenario, ScenarioLibrary
from devstack.simulator.templates import is_summary_wanted, summary_text, turn_of
from tenure.domain.compaction import SUMMARY_REQUEST
from tenure.domain.conversation import SUMMARY_HEAD


def played(library: ScenarioLibrary, model: str) -> Scenario:
    scenario = library.find(model)
    assert scenario is not None
    return scenario


def user(words: Any) -> Any:
    return {"role": "user", "content": [{"type": "text", "text": words}]}


def body(*messages: Any, **fields: Any) -> Any:
    return {"model": "sim-echo", "max_tokens": 10, "messages": list(messages), **fields}


def test_a_summary_is_wanted_by_one_message_without_tools() -> None:
    wanted = user(f"<conversation>\n\nAgent: hi\n\n</conversation>\n\n{SUMMARY_REQUEST}")
    assert is_summary_wanted(body(wanted))
    assert not is_summary_wanted(body(wanted, tools=[{"name": "t"}]))
    assert not is_summary_wanted(body(user("hello")))


def test_a_summary_states_how_many_turns_it_replaces() -> None:
    response = summary_text("It went well.", [user("Agent: a [turn 3]\n\nAgent: b [turn 4]")])
    assert response == "It went well. [5 turns so far]"
    head = user(f"goal\n{SUMMARY_HEAD}\n\n{response}")
    assert turn_of([head]) == 5
    assert turn_of([head, {"role": "assistant", "content": "c"}, user("d")]) == 6
    assert summary_text("On.", [user(f"User: {response}")]) == "On. [5 turns so far]"
    assert turn_of([user("goal")]) == 0


def test_a_family_and_a_file_name_their_window(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("window_tokens: 700\nsummary: {text: Short.}\nturns: [{text: hi}]\n")
    library = ScenarioLibrary([tmp_path])
    assert played(library, "sim-small").window_tokens == 700
    assert played(library, "sim-small").summary.text == "Short."
    assert played(library, "sim-steps-3-read_file-0ms-100b-900w").window_tokens == 900
    assert played(library, "sim-hello").window_tokens is None
