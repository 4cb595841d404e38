"""Converts the conversation of the ledger to the messages of the Chat Completions API. Pure.

The ledger keeps one history, in Anthropic's blocks, whichever provider wrote it. The conversion leaves out what only
Anthropic can read back: thoughts with their signatures, and the calls and results of Anthropic's own tools. What a chat
server wants back unread (dialects.py) is kept in blocks `reasoning` and in members of calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tenure.domain.conversation import Message
from tenure.domain.entries import ContentBlock
from tenure.model_providers.dialects import KEPT_OF_CALLS, OTHER, ChatDialect

REASONING: Final = "reasoning"
KEPT: Final = "kept"
"""The member of a block `reasoning` with the members of the answer that go back as they came."""

ERROR_HEAD: Final = "The call failed: "
"""Begins the result of a failed call: a chat message has no member for a failure."""

IMAGES_OF_CALL: Final = "Images in the result of the call {call}:"
LONGEST_DESCRIPTION: Final = 1024
"""Of a tool, for OpenAI: "string too long. Expected a string with maximum length 1024"."""
GOES_ON: Final = " … (goes on in the description of the parameters)"

EMPTY_RESULT: Final = "(no output)"
"""Stands for an empty result, which some servers refuse."""


def without_chat_parts(messages: Sequence[Message]) -> Sequence[Message]:
    """Returns the conversation without what only chat servers read. Copies only messages that have such parts."""
    if not any(map(_has_chat_parts, messages)):
        return messages
    plain = [
        {**message, "content": [_plain(block) for block in message["content"] if block["type"] != REASONING]}
        if _has_chat_parts(message)
        else message
        for message in messages
    ]
    return [message for message in plain if message["content"]]


def _has_chat_parts(message: Message) -> bool:
    if message["role"] != "assistant" or isinstance(message["content"], str):
        return False
    return any(block["type"] == REASONING or not block.keys().isdisjoint(KEPT_OF_CALLS) for block in message["content"])


def _plain(block: ContentBlock) -> ContentBlock:
    return {key: value for key, value in block.items() if key not in KEPT_OF_CALLS}


def chat_messages(system: str, messages: Iterable[Message], dialect: ChatDialect = OTHER) -> list[dict[str, Any]]:
    """Returns the chat messages of a conversation, after the system prompt unless it is "".

    Each result follows the message with its call, as the servers demand. Does not change the argument.
    """
    converted = [{"role": "system", "content": system}] if system else []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        converted += _of_assistant(blocks, dialect) if message["role"] == "assistant" else _of_user(blocks)
    return converted


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns tool definitions in the form of the Chat Completions API."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a definition. Of a description that OpenAI finds too long, the parameters have the rest."""
    description, schema = tool["description"], tool["input_schema"]
    if len(description) > LONGEST_DESCRIPTION:
        kept = description[: LONGEST_DESCRIPTION - len(GOES_ON)]
        own = schema.get("description")
        rest = description[len(kept) :]
        schema = {**schema, "description": f"{rest}\n\n{own}" if isinstance(own, str) else rest}
        description = f"{kept}{GOES_ON}"
    return {"name": tool["name"], "description": description, "parameters": schema}


def _of_assistant(blocks: Sequence[ContentBlock], dialect: ChatDialect) -> Iterator[dict[str, Any]]:
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
            **({name: block[name] for name in KEPT_OF_CALLS if name in block} if dialect.returns_calls_whole else {}),
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    reasoning = "".join(block[REASONING] for block in blocks if block["type"] == REASONING)
    thoughts = {dialect.thoughts: reasoning} if dialect.thoughts and reasoning else {}
    kept = {
        name: value for block in blocks if block["type"] == REASONING for name, value in block.get(KEPT, {}).items()
    }
    thoughts |= {name: value for name, value in kept.items() if name in dialect.kept}
    if calls:
        yield {"role": "assistant", "content": text or None, **thoughts, "tool_calls": calls}
    elif text:
        yield {"role": "assistant", "content": text, **thoughts}


def _of_user(blocks: Sequence[ContentBlock]) -> Iterator[dict[str, Any]]:
    """Yields a message for each result, then one with all else: also with the images of results, which have no other
    place in a chat.
    """
    results = [block for block in blocks if block["type"] == "tool_result"]
    for block in results:
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block)}
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    images = [part for block in results for part in _images_of_result(block)]
    own = [part for block in blocks if block["type"] == "image" for part in _image(block)]
    if images or own:
        yield {"role": "user", "content": [*images, *({"type": "text", "text": text} for text in texts), *own]}
    elif texts:
        yield {"role": "user", "content": "\n\n".join(texts)}


def _images_of_result(block: ContentBlock) -> Iterator[dict[str, Any]]:
    """Yields the images of a result after a text that names its call."""
    content = block.get("content")
    parts = content if isinstance(content, list) else ()
    images = [image for part in parts if part.get("type") == "image" for image in _image(part)]
    if images:
        yield {"type": "text", "text": IMAGES_OF_CALL.format(call=block["tool_use_id"])}
        yield from images


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
