"""A model's answer as server-sent events, in the provider's order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenure.dev.simulator.model_reply import ModelReply, ReplyBlock
    from tenure.dev.simulator.tokens import InputTokens

DELTA_CHARACTERS = 80


class StreamEvent(NamedTuple):
    """One event: its bytes, and how many bytes of the answer it carries (deltas only). `is_end`: ends the answer."""

    data: bytes
    produced_bytes: int = 0
    is_delta: bool = False
    is_end: bool = False


def message_value(reply: ModelReply, input_tokens: InputTokens) -> dict[str, Any]:
    """The answer as one JSON object."""
    return {
        "id": reply.message_id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [block.value() for block in reply.blocks],
        "stop_reason": reply.stop_reason,
        "stop_sequence": None,
        "stop_details": reply.stop_details,
        "usage": usage_value(input_tokens, reply.output_tokens),
    }


def usage_value(tokens: InputTokens, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": tokens.plain,
        "cache_creation_input_tokens": tokens.cache_creation,
        "cache_read_input_tokens": tokens.cache_read,
        "output_tokens": output_tokens,
    }


def stream_events(reply: ModelReply, tokens: InputTokens, deltas: int | None) -> Iterator[StreamEvent]:
    """All events of a whole answer. `deltas`: about how many, else one for every 80 characters."""
    opened = {**message_value(reply, tokens), "content": [], "stop_reason": None, "stop_details": None}
    yield _event("message_start", message={**opened, "usage": usage_value(tokens, 1)})
    for index, block in enumerate(reply.blocks):
        yield _event("content_block_start", index=index, content_block=block.opening())
        if index == 0:
            yield _event("ping")
        for piece in _pieces(block, _piece_length(reply, deltas)):
            data = _event("content_block_delta", index=index, delta=block.delta(piece)).data
            yield StreamEvent(data, len(piece.encode()), is_delta=True)
        yield _event("content_block_stop", index=index)
    ending = {"stop_reason": reply.stop_reason, "stop_sequence": None, "stop_details": reply.stop_details}
    message_delta = _event("message_delta", delta=ending, usage=usage_value(tokens, reply.output_tokens))
    yield message_delta._replace(is_end=True)
    yield _event("message_stop")


def error_event(value: dict[str, object]) -> bytes:
    """What a provider sends when it fails in the middle of a stream."""
    return f"event: error\ndata: {json.dumps(value)}\n\n".encode()


def delta_count(reply: ModelReply, deltas: int | None) -> int:
    length = _piece_length(reply, deltas)
    return sum(-(-len(block.text) // length) for block in reply.blocks)


def _piece_length(reply: ModelReply, deltas: int | None) -> int:
    if deltas is None:
        return DELTA_CHARACTERS
    return max(1, -(-sum(len(block.text) for block in reply.blocks) // deltas))


def _pieces(block: ReplyBlock, length: int) -> Iterator[str]:
    for start in range(0, len(block.text), length):
        yield block.text[start : start + length]


def _event(name: str, **fields: Any) -> StreamEvent:
    return StreamEvent(f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode())
