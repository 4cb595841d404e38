"""Agents of the OpenAI Agents SDK: what a model call reserves, reports and sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import openai
import pytest
from agents import (
    Agent,
    FunctionTool,
    ToolGuardrailFunctionOutput,
    function_tool,
    set_tracing_disabled,
    tool_input_guardrail,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseErrorEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseTextDeltaEvent,
)

from tenure.agents import Effect
from tenure.agents.openai_agents import durable
from tenure.agents.openai_agents.models import input_bound
from tenure.control.failures import failure_of
from tenure.control.own_tools import OwnTool
from tenure.domain.budget import TokenUsage
from tenure.domain.tools import Outcome
from tests.support.journal_work import JournalWork
from tests.support.openai_script import Script, call, sent_to_the_model, text_message

set_tracing_disabled(True)


class Stream(Script):
    """Answers with these events."""

    async def stream_response(self, *arguments: Any, **options: Any) -> Any:
        for event in self.answers:
            yield event


def test_picture_reserves_an_estimate() -> None:
    picture = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{'iVBORw0K' * 100_000}"}
    seen: Any = {"role": "user", "content": [{"type": "input_text", "text": "What is it? " * 1000}, picture]}
    returned: Any = {"type": "function_call_output", "call_id": "c", "output": [picture]}
    without: Any = {"role": "user", "content": [{"type": "input_text", "text": "What is it? " * 1000}]}
    text, both = (input_bound("Help.", given, [], None, []) for given in ([without], [seen, returned]))
    assert text > 3000, "the text counts as before"
    assert text + 2 * 5000 < both < text + 2 * 30_000


async def test_error_in_a_stream_is_raised_and_its_output_billed() -> None:
    arguments = ResponseFunctionCallArgumentsDeltaEvent(
        delta='{"cents": 5',
        item_id="i",
        output_index=0,
        sequence_number=1,
        type="response.function_call_arguments.delta",
    )
    error = ResponseErrorEvent(code="server_error", message="too busy", sequence_number=2, type="error")
    events: list[Any] = [arguments, error]
    work = JournalWork("Refund")
    with pytest.raises(openai.APIError, match="too busy") as failed:
        await durable(Agent(name="support", model=Stream(*events))).run(work, None)
    assert failure_of(failed.value).retryable
    assert work.reports[0].usages == [TokenUsage(output_tokens=3)]


async def test_text_of_a_stream_is_reported_as_it_comes() -> None:
    def delta(text: str) -> ResponseTextDeltaEvent:
        return ResponseTextDeltaEvent(
            content_index=0,
            delta=text,
            item_id="m",
            logprobs=[],
            output_index=0,
            sequence_number=1,
            type="response.output_text.delta",
        )

    response = Response(
        id="r",
        created_at=0,
        model="m",
        object="response",
        output=text_message("Hello!"),
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    end = ResponseCompletedEvent(response=response, sequence_number=3, type="response.completed")
    events: list[Any] = [delta("Hel"), delta("lo!"), end]
    work = JournalWork("Greet")
    assert await durable(Agent(name="support", model=Stream(*events))).run(work, None) == "Hello!"
    assert work.reports[0].texts == ["Hel", "lo!"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"Retry-After": "30"}, 30.0), ({"retry-after-ms": "1500"}, 1.5), ({"Retry-After": "soon"}, None)],
)
async def test_the_wait_that_the_provider_asks_for_is_kept(headers: dict[str, str], seconds: float | None) -> None:
    class Busy(Script):
        async def stream_response(self, *arguments: Any, **options: Any) -> Any:
            response = httpx2.Response(429, headers=headers, request=httpx2.Request("POST", "http://model"))
            for event in self.answers:
                yield event
            raise openai.RateLimitError("slow down", response=response, body=None)

    with pytest.raises(openai.RateLimitError) as failed:
        await durable(Agent(name="support", model=Busy())).run(JournalWork("Refund"), None)
    failure = failure_of(failed.value)
    assert (failure.retryable, failure.retry_after_seconds) == (True, seconds)


def test_revision_names_tools_that_need_approval() -> None:
    async def is_large(_context: Any, arguments: dict[str, Any], _call_id: str) -> bool:
        return bool(arguments["cents"] > 100)

    @function_tool(needs_approval=True)
    def refund() -> str:
        return ""

    @function_tool(needs_approval=is_large)
    def credit(cents: int) -> str:
        return ""

    @function_tool
    def look_up() -> str:
        return ""

    describe = durable(Agent(name="support", model=Script(), tools=[refund, credit, look_up])).describe
    assert describe is not None
    approvals = {tool.name: tool.needs_approval for tool in describe().tools}
    assert approvals == {"refund": True, "credit": True, "look_up": False}


@pytest.mark.parametrize("price", ["NaN", "1e999", f'"{"x" * 300_000}"', "[" * 300 + "]" * 300])
async def test_arguments_without_json_are_an_error_of_the_model(price: str) -> None:
    @function_tool(strict_mode=False)
    def order(price: Any) -> str:
        raise AssertionError(f"the call has no arguments: {price}")

    @function_tool
    def weigh(item: str) -> str:
        return f"weighed {item}"

    script = Script([call("order", f'{{"price": {price}}}'), call("weigh", '{"item": "tea"}')], text_message("Done."))
    agent = Agent(name="shop", model=script, tools=[order, weigh])
    assert await durable(agent).run(JournalWork("Order"), None) == "Done."
    assert sent_to_the_model(script, "order")[0].startswith(
        "INVALID_ARGUMENTS: The arguments of order cannot be recorded: "
    )
    assert sent_to_the_model(script, "weigh") == ["weighed tea"]


class Steps(JournalWork):
    """`made`: the tools of each step, and whether their calls wait for a person."""

    def __init__(self, goal: str) -> None:
        super().__init__(goal)
        self.made = list[list[tuple[str, bool]]]()

    async def call_own_tools(self, calls: Sequence[tuple[OwnTool, Mapping[str, Any]]]) -> list[Outcome]:
        self.made.append([(tool.name, tool.needs_approval) for tool, _ in calls])
        return await super().call_own_tools(calls)


async def test_calls_beside_an_inline_tool_wait_together() -> None:
    """The SDK runs the tools of such an agent one at a time. A call that a guardrail may refuse keeps its turn."""
    ran = []

    @tool_input_guardrail
    def refuse(_data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("not today")

    def tool(name: str, *, needs_approval: bool = True, refused: bool = False) -> FunctionTool:
        def run() -> str:
            ran.append(name)
            return name

        made = function_tool(run, name_override=name, needs_approval=needs_approval)
        made.tool_input_guardrails = [refuse] if refused else None
        return made

    tools = [tool("look", needs_approval=False), tool("inline"), tool("pay"), tool("refused", refused=True)]
    script = Script([call(each.name) for each in tools], [call("later")], text_message("Done."))
    agent = Agent(name="support", model=script, tools=[*tools, tool("later")])
    work = Steps("Act")
    effects = {"inline": None, "look": Effect.PURE, "pay": Effect.KEYED}
    assert await durable(agent, effects=effects).run(work, None) == "Done."
    assert work.made == [[("look", False), ("inline", True), ("pay", True)], [("later", True)]]
    assert ran == ["look", "pay", "inline", "later"]
    assert sent_to_the_model(script, "refused", 1) == ["not today"]
