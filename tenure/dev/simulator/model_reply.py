"""From a turn to an answer: content blocks with fresh ids, cut at max_tokens, and what they cost."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.dev.simulator.templates import fill
from tenure.dev.simulator.tokens import tokens_of_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure.dev.simulator.scenario import Turn


@dataclass(frozen=True)
class ReplyBlock:
    """A text, or a tool use whose arguments are the text of a JSON object."""

    text: str
    tool_name: str | None = None
    tool_use_id: str | None = None
    whole: bool = True

    def opening(self) -> dict[str, Any]:
        """As it stands in content_block_start: still empty."""
        if self.tool_name is None:
            return {"type": "text", "text": ""}
        return {"type": "tool_use", "id": self.tool_use_id, "name": self.tool_name, "input": {}}

    def value(self) -> dict[str, Any]:
        """As it stands in a whole message. Arguments that were cut off are lost: the input is empty then."""
        if self.tool_name is None:
            return {"type": "text", "text": self.text}
        return {**self.opening(), "input": json.loads(self.text) if self.whole else {}}

    def delta(self, piece: str) -> dict[str, Any]:
        if self.tool_name is None:
            return {"type": "text_delta", "text": piece}
        return {"type": "input_json_delta", "partial_json": piece}


@dataclass(frozen=True)
class ModelReply:
    """One answer, whole: how it would read if nothing went wrong."""

    message_id: str
    model: str
    blocks: tuple[ReplyBlock, ...]
    stop_reason: str
    output_tokens: int

    @property
    def size_bytes(self) -> int:
        return sum(len(block.text.encode()) for block in self.blocks)

    @property
    def stop_details(self) -> dict[str, Any] | None:
        if self.stop_reason != "refusal":
            return None
        return {"type": "refusal", "category": None, "explanation": "The simulated model declines this request."}

    def tokens_after(self, produced_bytes: int) -> int:
        """The output tokens billed once so much of the answer was produced: in proportion, at least one."""
        size = self.size_bytes
        if produced_bytes >= size:
            return self.output_tokens
        return max(1, -(-self.output_tokens * produced_bytes // size))


def compose(turn: Turn, body: Mapping[str, Any], room: int | None = None) -> ModelReply:
    """The answer that `turn` gives to a valid request. Tool use ids are new every time. `room`: left in the window."""
    blocks = [ReplyBlock(text)] if (text := fill(turn.text, body["messages"])) else []
    calls = () if (body.get("tool_choice") or {}).get("type") == "none" else turn.calls
    for call in calls:
        arguments = json.dumps(fill(call.arguments, body["messages"]), ensure_ascii=False)
        blocks.append(ReplyBlock(arguments, call.name, f"toolu_{secrets.token_hex(12)}"))
    stop_reason = turn.stop_reason or ("tool_use" if calls else "end_turn")
    reply = ModelReply(f"msg_{secrets.token_hex(12)}", body["model"], tuple(blocks), stop_reason, 1)
    tokens = turn.output_tokens or max(1, tokens_of_bytes(reply.size_bytes))
    if room is not None and room < body["max_tokens"]:
        return _within(reply, tokens, room, "model_context_window_exceeded")
    return _within(reply, tokens, body["max_tokens"], "max_tokens")


def _within(reply: ModelReply, tokens: int, max_tokens: int, stop_reason: str) -> ModelReply:
    if tokens <= max_tokens:
        return ModelReply(reply.message_id, reply.model, reply.blocks, reply.stop_reason, tokens)
    left = reply.size_bytes * max_tokens // tokens
    kept: list[ReplyBlock] = []
    for block in reply.blocks:
        if left <= 0:
            break
        encoded = block.text.encode()
        text = encoded[:left].decode(errors="ignore")  # a character is not cut in two
        kept.append(ReplyBlock(text, block.tool_name, block.tool_use_id, whole=len(encoded) <= left))
        left -= len(encoded)
    return ModelReply(reply.message_id, reply.model, tuple(kept), stop_reason, max_tokens)
