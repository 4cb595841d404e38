"""The examples of agents in Python, with scripted models on a Work in memory: each executes twice, from the record."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from agents.models.interface import Model
from pydantic_ai.models.function import FunctionModel

from tenure.agents import DurableFunction
from tests.support.journal_work import JournalWork
from tests.unit.test_agents_openai import Script as OpenAiScript
from tests.unit.test_agents_openai import call as openai_call
from tests.unit.test_agents_openai import said as openai_said
from tests.unit.test_agents_pydantic_ai import Script, call, said

FOLDER = Path(__file__).parents[2] / "examples" / "agents"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


async def twice(function: DurableFunction, work: JournalWork, given: Any = None) -> Any:
    """The result, the same from the record."""
    first = await function.run(work.begin(), given)
    assert await function.run(work.begin(), given) == first
    return first


async def test_pydantic_weather() -> None:
    names = example("pydantic_weather")
    script = Script(
        call("get_lat_lng", location_description="London"), call("get_weather", lat=1, lng=2), said("Sunny.")
    )
    work = JournalWork("What is the weather in London?")
    with names["weather_agent"].override(model=FunctionModel(script)):
        assert await twice(names["weather"], work, {"unit": "F"}) == "Sunny."
    assert "21 F" in str(script.seen[2])
    assert len(script.seen) == 3


async def test_pydantic_bank() -> None:
    names = example("pydantic_bank")
    output = call("final_result", support_advice="Done.", block_card=True, risk=8)
    script = Script(call("customer_balance"), call("block_card", reason="lost"), output)
    work = JournalWork("I lost my card!")
    with names["support_agent"].override(model=FunctionModel(script)):
        result = await twice(names["bank"], work, {"customer_id": 123})
    assert result == {"support_advice": "Done.", "block_card": True, "risk": 8}
    assert [tool.needs_approval for tool in work.tools] == [False, True]
    assert "task/4.0" in str(script.seen[2])


async def test_pydantic_jokes() -> None:
    names = example("pydantic_jokes")
    selecting = Script(call("joke_factory", count=2), said("Knock."))
    writing = Script(call("final_result", response=["Knock.", "Who?"]))
    work = JournalWork("Tell me a joke.")
    with (
        names["joke_selection_agent"].override(model=FunctionModel(selecting)),
        names["joke_generation_agent"].override(model=FunctionModel(writing)),
    ):
        assert await twice(names["jokes"], work) == "Knock."
    assert work.kinds == ["jokes: model", "joke-writer: model", "jokes: model"]


async def test_openai_weather(monkeypatch: Any) -> None:
    script = OpenAiScript([openai_call("get_weather", '{"city": "Tokyo"}')], openai_said("Windy."))
    serve(monkeypatch, script)
    work = JournalWork("What's the weather in Tokyo?")
    assert await twice(example("openai_weather")["hello"], work) == "Windy."
    assert "Sunny with wind" in str(script.seen[1])


async def test_openai_triage(monkeypatch: Any) -> None:
    script = OpenAiScript(
        [openai_call("transfer_to_refund_agent")],
        [openai_call("refund", '{"order": "7", "cents": 5}')],
        openai_said("Refunded."),
    )
    serve(monkeypatch, script)
    work = JournalWork("I want my money back for order 7")
    assert await twice(example("openai_triage")["triage"], work) == "Refunded."
    assert [tool.needs_approval for tool in work.tools] == [True]


async def test_openai_translator(monkeypatch: Any) -> None:
    script = OpenAiScript(
        [openai_call("translate_to_spanish", '{"input": "Hello"}')], openai_said("Hola"), openai_said("Hola.")
    )
    serve(monkeypatch, script)
    work = JournalWork("Say 'Hello' in Spanish.")
    assert await twice(example("openai_translator")["translator"], work) == "Hola."
    assert work.kinds == ["model"] * 3
    assert len(script.seen) == 3


def serve(monkeypatch: Any, script: Model) -> None:
    """Has the SDK's own provider return the script for every name."""
    monkeypatch.setattr("agents.models.multi_provider.MultiProvider.get_model", lambda *_: script)
