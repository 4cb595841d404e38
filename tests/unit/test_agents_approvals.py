"""No call runs that a person has not allowed, wherever its tool says that it needs an approval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tenure.agents import Effect
from tenure.control.own_tools import OwnTool
from tenure.domain.tools import Outcome, OutcomeStatus
from tests.support.approval_agents import AGENT, CELLS, PYDANTIC, RAISED, TOOLSET, Cell, build
from tests.support.journal_work import JournalWork
from tests.support.openai_script import Script, call, text_message
from tests.support.sweeps import one_of_each

RUNS = {"allow": ["5"], "edit": ["7"], "deny": [], "nobody": []}


class Waits(BaseException):
    """Without an answer the function is stopped."""


class Person(JournalWork):
    """A person who answers each request for an approval in the same way."""

    def __init__(self, answer: str, approve_tools: list[str]) -> None:
        super().__init__("Act", approve_tools=frozenset(approve_tools))
        self.answer, self.asked = answer, 0

    async def _call(self, call_id: str, tool: OwnTool, arguments: Mapping[str, Any]) -> Outcome:
        if not tool.needs_approval and tool.name not in self.approve_tools:
            return await super()._call(call_id, tool, arguments)
        self.asked += 1
        match self.answer:
            case "nobody":
                raise Waits
            case "deny":
                return Outcome(OutcomeStatus.NOT_ALLOWED, "A person denied the call.")
            case "edit":
                arguments = {name: 7 if name == "cents" else value for name, value in arguments.items()}
        return await super()._call(call_id, tool, arguments)


def model(cell: Cell, answer: str) -> Any:
    if cell.library != PYDANTIC:
        if cell.where == AGENT:  # the outer and the inner agent share it
            inner = [] if answer == "deny" else [[call("act", '{"cents": 5}')], text_message("5")]
            return Script([call("ask", '{"input": "?"}')], *inner, text_message("Done."))
        return Script([call("act", '{"cents": 5}')], text_message("Done."))

    def says(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("act", {"cents": 5}, tool_call_id="c")])
        return ModelResponse(parts=[TextPart("Done.")])

    return FunctionModel(says)


@pytest.mark.parametrize("answer", RUNS)
@pytest.mark.parametrize(
    "cell", one_of_each(CELLS, lambda cell: (cell.library, cell.where, cell.effect is None)), ids=lambda cell: cell.name
)
async def test_a_call_runs_only_as_a_person_allowed_it(cell: Cell, answer: str, tmp_path: Path) -> None:
    trace, work = tmp_path / "trace", Person(answer, cell.approve_tools)
    function = build(cell, model(cell, answer))
    if answer == "nobody":
        with pytest.raises(Waits):
            await function.run(work, str(trace))
    else:
        assert await function.run(work, str(trace)) == "Done."
    expected = ["5"] if cell.where == AGENT and answer == "edit" else RUNS[answer]
    assert (trace.read_text().split() if trace.exists() else []) == expected
    assert work.asked == 1, "the call ran unasked, or asked twice"


@pytest.mark.parametrize("where", [RAISED, TOOLSET])
async def test_next_owner_does_not_ask_again(where: str, tmp_path: Path) -> None:
    cell, trace, work = Cell(PYDANTIC, where, Effect.KEYED), tmp_path / "trace", JournalWork("Act")
    function = build(cell, model(cell, "allow"))
    assert await function.run(work, str(trace)) == "Done."
    assert await function.run(work.begin(), str(trace)) == "Done."
    assert trace.read_text().split() == ["5"]
    assert [tool.needs_approval for tool in work.tools].count(True) == 1
