"""The content blocks of an answer, which are a provider's or a foreign loop's JSON."""

from __future__ import annotations

import json
from typing import Any

from tenure.v1 import ledger_pb2


def content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """The blocks. ValueError for what the fold could not take."""
    try:
        blocks = json.loads(message.content_json or "[]")
    except RecursionError:
        raise ValueError("content_json nests too deeply") from None
    if not isinstance(blocks, list) or not all(map(_is_block, blocks)):
        raise ValueError("content_json is no JSON array of content blocks")
    return tuple(blocks)


def readable_content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """The blocks; none when they are malformed, as entries of before may be."""
    try:
        return content_of(message)
    except ValueError:
        return ()


def _is_block(block: Any) -> bool:
    """An object with a type; the words of a text are a string."""
    return isinstance(block, dict) and isinstance(block.get("type"), str) and isinstance(block.get("text", ""), str)
