"""Converts the conversation of the ledger to the messages of the Chat Completions API. Pure.

The ledger keeps one history, in Anthropic's blocks, whichever provider wrote it. The conversion leaves out what only
Anthropic can read back: thoughts with their signatures, and the calls and results of Anthropic's own tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tenure.domain.conversation import Message
from tenure.domain.entries import ContentBlock

ERROR_HEAD: Final = "The call failed: "
"""Begins the result of a failed call: a chat message has no member for a failure."""

EMPTY_RESULT: Final = "(no output)"
"""Stands for an empty result, which some servers refuse."""


def chat_messages(system: str, messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Returns the chat messages of a conversation, after the system prompt unless it is "".

    Each result follows the message with its call, as the servers demand. Does not change the argument.
    """
    converted = [{"role": "system", "content": system}] if system else []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        converted += _of_assistant(blocks) if message["role"] == "assistant" else _of_user(blocks)
    return converted


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns tool definitions in the form of the Chat Completions API."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools
    ]


def _of_assistant(blocks: Sequence[ContentBlock]) -> Iterator[dict[str, Any]]:
    """Yields one message, or none if nothing of the answer can be sent."""
    text = "\n\n".join(block["text"] for block in blocks if block["type"] == "text" and block["text"])
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {
                "name": block["name"],
                "arguments": json.dumps(block["input"], ensure_ascii=False, separators=(",", ":")),
            },
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text}


def _of_user(blocks: Sequence[ContentBlock]) -> Iterator[dict[str, Any]]:
    """Yields a message for each result, then one with all else."""
    for block in blocks:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block)}
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    images = [part for block in blocks if block["type"] == "image" for part in _image(block)]
    if images:
        yield {"role": "user", "content": [*({"type": "text", "text": text} for text in texts), *images]}
    elif texts:
        yield {"role": "user", "content": "\n\n".join(texts)}


def _result(block: ContentBlock) -> str:
    content = block.get("content") or ""
    if not isinstance(content, str):
        content = "\n\n".join(part["text"] for part in content if part.get("type") == "text")
    return f"{ERROR_HEAD if block.get('is_error') else ''}{content or EMPTY_RESULT}"


def _image(block: ContentBlock) -> Iterator[dict[str, Any]]:
    source = block.get("source") or {}
    if source.get("type") == "base64":
        yield {"type": "image_url", "image_url": {"url": f"data:{source['media_type']};base64,{source['data']}"}}
    elif source.get("type") == "url":
        yield {"type": "image_url", "image_url": {"url": source["url"]}}
