"""The JSON of a conversation's messages: written once, measured and sent from the same text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.models.work import read_prompt
from services.worker.context_window import InputEstimate, likely_tokens
from tenure.domain.texts import text_tokens
from tenure.model_providers.anthropic_models import AnthropicProvider, Prompt, marked
from tenure.model_providers.client import ModelRequest
from tenure.model_providers.message_texts import MAX_KEPT_CHARACTERS, TOOL_TEXTS, MessageTexts, ToolTexts, as_json
from tenure.v1 import model_service_pb2, tool_pb2

SYSTEM = "Be brief. Grüße."
TOOLS = [{"name": "list_files", "description": "Lists.", "input_schema": {"type": "object"}}]


def history(turns: int) -> Any:
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "Zähle “alles”."}]}]
    for turn in range(turns):
        use = {"type": "tool_use", "id": f"t{turn}", "name": "list_files", "input": {"größe": turn}}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": "a.txt\n", "is_error": False}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return messages


def test_a_message_is_written_once() -> None:
    messages, texts = history(2), MessageTexts()
    first = texts.of(messages)
    assert first == [as_json(message) for message in messages]
    messages += history(3)[5:]
    second = texts.of(messages)
    assert second == [as_json(message) for message in messages]
    assert all(before is after for before, after in zip(first, second, strict=False))


def test_replaced_message_is_written() -> None:
    messages, texts = history(2), MessageTexts()
    texts.of(messages)
    del messages[3:]
    assert texts.of(messages) == [as_json(message) for message in messages]
    messages += [{"role": "assistant", "content": [{"type": "text", "text": "Other."}]}]
    assert texts.of(messages) == [as_json(message) for message in messages]


def test_estimates_that_share_texts_measure_all_messages() -> None:
    texts = MessageTexts()
    shared = [(measure, InputEstimate(SYSTEM, TOOLS, measure, texts)) for measure in (text_tokens, likely_tokens)]
    messages = history(4)
    for count in (3, 5, 4, 9, 1, 9):  # also after newer messages were removed
        known, to_come = messages[:count], messages[count : count + 1]
        for measure, estimate in shared:
            assert estimate.upper_bound(known) == InputEstimate(SYSTEM, TOOLS, measure).upper_bound(known)
            with_next = InputEstimate(SYSTEM, TOOLS, measure).upper_bound([*known, *to_come])
            assert estimate.upper_bound(known, to_come) == with_next


@pytest.mark.parametrize("has_texts", [True, False])
@pytest.mark.parametrize("is_repeated_soon", [True, False])
async def test_sent_text_is_the_prompt(has_texts: bool, is_repeated_soon: bool) -> None:
    messages = history(3)
    request = ModelRequest(
        "m",
        messages,
        64,
        SYSTEM,
        TOOLS,
        is_repeated_soon=is_repeated_soon,
        texts=MessageTexts().of(messages) if has_texts else (),
    )
    provider = AnthropicProvider(api_key="k", base_url=None, silence_seconds=1.0)
    body = json.loads(provider.payload_of(request)["content"])
    await provider.close()
    prompt = Prompt(SYSTEM, TOOLS, messages)
    system, tools, sent = marked(prompt) if is_repeated_soon else prompt
    assert body == {
        "model": "m", "max_tokens": 64, "stream": True, "system": system, "tools": tools, "messages": sent,
    }  # fmt: skip


async def test_an_empty_prompt_names_no_system_and_no_tools() -> None:
    provider = AnthropicProvider(api_key="k", base_url=None, silence_seconds=1.0)
    body = json.loads(provider.payload_of(ModelRequest("m", history(0), 64))["content"])
    await provider.close()
    assert body.keys() == {"model", "max_tokens", "stream", "messages"}


TOOL: dict[str, Any] = {
    "name": "sum",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"ä": {}}},
}


async def test_a_marked_tool_leaves_the_kept_text_as_it_was() -> None:
    provider = AnthropicProvider(api_key="k", base_url=None, silence_seconds=1.0)
    tools = [TOOL, {**TOOL, "name": "last"}]
    request = ModelRequest("m", history(0), 64, tools=tools, is_repeated_soon=True)
    bodies = [json.loads(provider.payload_of(request)["content"]) for _ in range(2)]
    await provider.close()
    assert bodies[0] == bodies[1]
    assert bodies[0]["tools"] == [TOOL, {**tools[1], "cache_control": {"type": "ephemeral"}}]
    assert TOOL_TEXTS.of(TOOL) == as_json(TOOL)
    assert TOOL_TEXTS.of(TOOL) is TOOL_TEXTS.of(TOOL)


def test_tools_of_the_same_content_have_texts_of_their_own() -> None:
    texts = ToolTexts(most=2)
    for number in range(100):  # each is gone before the next one, which may get its place in memory
        assert texts.of({"name": f"tool_{number}"}) == f'{{"name":"tool_{number}"}}'


def test_long_tools_are_read_and_written_anew_each_time() -> None:
    """Those that are kept must not fill the memory of a model runner."""
    texts = ToolTexts()
    schema = as_json({"type": "object", "description": "x" * MAX_KEPT_CHARACTERS})
    prompt = model_service_pb2.Prompt(model="m", tools=[tool_pb2.ToolDefinition(name="t", input_schema_json=schema)])
    (tool,) = read_prompt(prompt).tools
    assert tool == {"name": "t", "description": "", "input_schema": json.loads(schema)}
    assert texts.of(tool) == as_json(tool)
    assert texts.of(tool) is not texts.of(tool)
    assert read_prompt(prompt).tools[0] is not tool
