"""The conversion of the ledger's conversation to chat messages: what a chat server reads is what the model said."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.simulator.chat_endpoint import to_messages_body
from devstack.simulator.http_server import ApiError
from tenure.domain.conversation import text_block
from tenure.domain.models import vendor_of
from tenure.model_providers.chat_messages import (
    EMPTY_RESULT,
    ERROR_HEAD,
    GOES_ON,
    LONGEST_DESCRIPTION,
    chat_messages,
    chat_tools,
    without_chat_parts,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
)
FOREIGN = st.sampled_from(
    [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    ]
)
CALLS = st.lists(st.tuples(st.dictionaries(TEXTS, JSON, max_size=3), st.text(max_size=20), st.booleans()), max_size=4)
TURNS = st.lists(st.tuples(st.lists(FOREIGN, max_size=2), st.none() | TEXTS, CALLS, st.none() | TEXTS), max_size=5)


@st.composite
def conversations(draw: Any) -> list[dict[str, Any]]:
    """A conversation as the ledger folds it, with parallel calls, failed calls and what only one vendor can read."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [text_block(draw(TEXTS))]}]
    for turn, (foreign, text, calls, reply) in enumerate(draw(TURNS)):
        uses = [
            {"type": "tool_use", "id": f"toolu_{turn}_{index}", "name": "list_files", "input": arguments}
            for index, (arguments, _, _) in enumerate(calls)
        ]
        answer = [*foreign, *([text_block(text)] if text else []), *uses]
        results = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": output, "is_error": is_error}
            for use, (_, output, is_error) in zip(uses, calls, strict=True)
        ]
        user = [*results, *([text_block(reply)] if reply or not results else [])]
        messages += [{"role": "assistant", "content": answer}] if answer else []
        messages.append({"role": "user", "content": user or [text_block("Go on.")]})
    return [
        {**message, "content": [block for block in message["content"] if block.get("text") != ""]}
        for message in messages
        if message["content"] != [{"type": "text", "text": None}]
    ]


def readable(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message that a chat server can read, as it reads them."""
    blocks = []
    for block in message["content"]:
        if block["type"] == "tool_result":
            head = ERROR_HEAD if block["is_error"] else ""
            blocks.append({**block, "content": head + (block["content"] or EMPTY_RESULT)})
            del blocks[-1]["is_error"]
        elif block["type"] in {"text", "tool_use"}:
            blocks.append(block)
    return blocks


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with neighbours of one role as one message."""
    result: list[dict[str, Any]] = []
    for message in messages:
        content = readable(message)
        if content and result and result[-1]["role"] == message["role"]:
            result[-1]["content"] += content
        elif content:
            result.append({"role": message["role"], "content": content})
    return result


@given(conversations(), st.just("") | TEXTS)
def test_a_chat_server_reads_the_same_conversation(messages: Any, system: str) -> None:
    before = copy.deepcopy(messages)
    converted = chat_messages(system, messages)
    assert messages == before, "the ledger's history was changed"
    body = to_messages_body(json.loads(json.dumps({"model": "m", "messages": converted})))
    assert body["messages"] == joined(before)
    assert body.get("system", "") == system


@given(conversations())
def test_no_signature_reaches_another_vendor(messages: Any) -> None:
    sent = json.dumps(chat_messages("", messages))
    assert "c2lnbmVk" not in sent
    assert "aGlkZGVu" not in sent
    assert "srvtoolu_1" not in sent


def test_an_image_is_sent_as_a_url() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    (message,) = chat_messages("", [{"role": "user", "content": [text_block("See:"), image]}])
    assert message["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]


def test_tools_keep_their_schemas() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    (tool,) = chat_tools([{"name": "list_files", "description": "Lists.", "input_schema": schema}])
    assert tool == {
        "type": "function",
        "function": {"name": "list_files", "description": "Lists.", "parameters": schema},
    }


def test_the_prefix_of_a_model_names_its_vendor() -> None:
    assert vendor_of("openai/gpt-5") == ("openai", "gpt-5")
    assert vendor_of("openai/org/model") == ("openai", "org/model")
    assert vendor_of("anthropic/claude-opus-4-8") == ("anthropic", "claude-opus-4-8")
    assert vendor_of("claude-opus-4-8") == ("anthropic", "claude-opus-4-8")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_simulator_reads_instructions_in_parts(role: str) -> None:
    parts = [{"type": "text", "text": "Be exact."}, {"type": "text", "text": "Be brief."}]
    messages = [{"role": role, "content": parts}, {"role": "user", "content": "hi"}]
    assert to_messages_body({"model": "m", "messages": messages})["system"] == "Be exact.\nBe brief."


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hi"},
        {"role": "user", "content": ["hi"]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://far.away"}]},
        {"role": "system", "content": [7]},
        {"role": "assistant", "tool_calls": ["add"]},
    ],
)
def test_the_simulator_refuses_a_malformed_message(message: Any) -> None:
    with pytest.raises(ApiError) as refused:
        to_messages_body({"model": "m", "messages": [message]})
    assert refused.value.status == 400


def test_another_vendor_gets_no_part_of_a_chat_server() -> None:
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    thought = {"type": "reasoning", "reasoning": "hm"}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": [thought]},
        {"role": "assistant", "content": [thought, {**call, "extra_content": {"google": {}}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Seen."}]},
    ]
    plain = without_chat_parts(messages)
    assert [message["content"] for message in plain] == [
        messages[0]["content"],
        [call],
        messages[3]["content"],
    ]
    assert plain[0] is messages[0]
    assert without_chat_parts(plain) is plain


def test_a_long_description_of_a_tool_goes_on_in_its_parameters() -> None:
    words = "".join(map(str, range(1000)))
    schema = {"type": "object", "properties": {}, "description": "All of it."}
    (tool,) = chat_tools([{"name": "t", "description": words, "input_schema": schema}])
    described, rest = tool["function"]["description"], tool["function"]["parameters"]["description"]
    assert len(described) == LONGEST_DESCRIPTION
    assert described.removesuffix(GOES_ON) + rest.removesuffix("\n\nAll of it.") == words
    assert schema["description"] == "All of it."
