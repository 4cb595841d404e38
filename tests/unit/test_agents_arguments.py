"""The recorded arguments of a Pydantic AI tool are the same in each process, or a later execution would diverge."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, Field, Strict, field_serializer
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tenure.agents import Agent
from tenure.agents.pydantic_ai.tool_calls import recordable
from tenure.control import OwnTool
from tests.support.journal_work import JournalWork

LETTERS = list(string.ascii_lowercase)
"""So many that no order of a set is theirs by chance."""


class Tagged(BaseModel):
    tags: set[str] = Field(serialization_alias="Tags")


@dataclass
class Folder:
    path: str
    inner: list[Tagged]
    names: frozenset[str]


class Joined(BaseModel):
    tags: set[str]

    @field_serializer("tags")
    def joined(self, tags: set[str]) -> str:
        return "+".join(sorted(tags))


def test_nested_sets_are_sorted() -> None:
    folder = Folder("a", [Tagged(tags=set(LETTERS))], frozenset(LETTERS))
    value = {"folder": folder, "numbers": ({3, 1, 2}, [2, 1]), "price": Decimal("1.50"), "joined": Joined(tags={"a"})}
    assert recordable(value) == {
        "folder": {"path": "a", "inner": [{"Tags": LETTERS}], "names": LETTERS},
        "numbers": [[1, 2, 3], [2, 1]],
        "price": "1.50",
        "joined": {"tags": "a"},
    }


async def test_edited_arguments_are_read_as_the_model_s() -> None:
    """A person edited them at the approval, as JSON. A strict date accepts no text but there."""
    booked: list[date] = []

    class Edited(JournalWork):
        async def call_own_tools(self, calls: Any) -> Any:
            return await super().call_own_tools([(tool, {"day": "2026-11-27"}) for tool, _ in calls])

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart("book", '{"day": "2026-11-26"}', tool_call_id="1")])

    agent = Agent("travel", model=FunctionModel(answer))

    @agent.tool_plain(requires_approval=True)
    def book(day: Annotated[date, Strict()]) -> None:
        booked.append(day)

    assert await agent.durable_function.run(Edited("Book"), None) == "Done."
    assert booked == [date(2026, 11, 27)]


async def test_a_tool_with_a_set_is_recorded_in_order() -> None:
    shuffled = random.Random(7).sample(LETTERS, len(LETTERS))
    recorded: list[Any] = []

    class Work(JournalWork):
        async def call_own_tools(self, calls: Any) -> Any:
            made: list[tuple[OwnTool, Any]] = list(calls)
            recorded.extend(dict(arguments) for _, arguments in made)
            return await super().call_own_tools(made)

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart("tag", {"tags": shuffled}, tool_call_id="1")])

    agent = Agent("tagger", model=FunctionModel(answer))

    @agent.tool_plain
    def tag(tags: set[str]) -> int:
        return len(tags)

    assert await agent.durable_function.run(Work("Tag"), None) == "Done."
    assert recorded == [{"tags": LETTERS}]
