"""Computes an upper bound of a model request's input in tokens, without the provider."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic_ai.messages import BinaryContent, ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters

from tenure.control.model_calls import PromptPart
from tenure.domain.texts import text_tokens

TOKENS_PER_REQUEST: Final = 512
"""Of the provider's own text, about tools for example."""
TOKENS_PER_PART: Final = 16
TOKENS_PER_MEDIUM: Final = 5_000
BYTES_PER_MEDIUM_TOKEN: Final = 32
"""Images have at most the first figure. Documents grow: an estimate, which no provider states."""
_UNSENT: Final = frozenset({"timestamp", "usage", "provider_details", "run_id", "conversation_id", "metadata"})
"""Fields of messages that no provider gets."""


def input_bound(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> int:
    """Returns an upper bound of the input of a request. Images and documents count with an estimate."""
    written = ModelMessagesTypeAdapter.dump_python(list(messages), mode="python")
    tokens = sum(text_tokens(text) + TOKENS_PER_PART for text in _texts(written))
    tools = [*parameters.function_tools, *parameters.output_tools]
    tokens += sum(
        text_tokens(tool.name + (tool.description or "") + json.dumps(tool.parameters_json_schema)) for tool in tools
    )
    if parameters.output_object is not None:
        tokens += text_tokens(json.dumps(parameters.output_object.json_schema))
    return tokens + _media_tokens(written) + TOKENS_PER_REQUEST


_PARTS: Final = {
    "system-prompt": "the system prompt",
    "user-prompt": "a message of the user",
    "retry-prompt": "an error for the model",
}


def largest_part(messages: Sequence[ModelMessage]) -> PromptPart | None:
    """Returns the part of the messages with the longest text."""
    written = ModelMessagesTypeAdapter.dump_python(list(messages), mode="python")
    parts = [_part(part) for message in written for part in message["parts"]]
    return max(parts, key=lambda part: part.size_bytes, default=None)


def _part(written: dict[str, Any]) -> PromptPart:
    size_bytes = sum(len(text.encode("utf-8", "replace")) for text in _texts(written))
    kind, tool = written["part_kind"], str(written.get("tool_name", ""))
    if kind == "tool-return":
        return PromptPart(name=f"the result of {tool}", size_bytes=size_bytes, tool=tool)
    return PromptPart(name=_PARTS.get(kind, "an answer of the model"), size_bytes=size_bytes)


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in messages, and numbers as texts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in _UNSENT:
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, int | float):
        yield str(value)


def _media_tokens(value: Any) -> int:
    """Returns the estimate for the images, sounds and documents in messages."""
    if isinstance(value, bytes):
        return TOKENS_PER_MEDIUM + len(value) // BYTES_PER_MEDIUM_TOKEN
    if isinstance(value, BinaryContent):
        return _media_tokens(value.data)
    if isinstance(value, dict):
        linked = TOKENS_PER_MEDIUM if str(value.get("kind", "")).endswith("-url") else 0
        return linked + sum(map(_media_tokens, value.values()))
    return sum(map(_media_tokens, value)) if isinstance(value, list | tuple) else 0
