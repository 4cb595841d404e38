"""The provider's stream events, folded into content blocks and usage. Small on purpose: the library's own helper costs
twice the processor time per event. Knows the events by their fields only, so it needs no provider's types.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.budget import TokenUsage
from tenure.domain.entries import ContentBlock

_USAGE_FIELDS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
BYTES_PER_TOKEN: Final = 4
"""Of output, until the provider says the true number: what a call is billed that was cut off or lost."""

_CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_TEXTS: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class MalformedAnswer(Exception):  # noqa: N818  it is the answer that is malformed
    """The stream ended without an end, or a call's arguments are no JSON although the model was not cut off."""


@dataclass(slots=True)
class _Block:
    """One content block while it comes: texts as lists, joined once."""

    start: dict[str, Any]
    texts: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    citations: list[Any] = field(default_factory=list)
    complete: bool = False


@dataclass(slots=True)
class AnswerFold:
    """Take every event; afterwards read `content()` and `usage()`. Both may be read at any time before the end too."""

    model: str = ""
    stop_reason: str | None = None
    size_bytes: int = 0
    stopped: bool = False
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _usage: dict[str, int] = field(default_factory=dict)
    _final_usage: bool = False

    def take(self, event: Any) -> str:
        """Folds one event in; returns the piece of visible text it brought, "" for none."""
        match event.type:
            case "message_start":
                self.model = event.message.model
                self._take_usage(event.message.usage)
            case "content_block_start":
                self._blocks[event.index] = _Block(event.content_block.to_dict(mode="json"))
            case "content_block_delta":
                return self._take_delta(self._blocks[event.index], event.delta)
            case "content_block_stop":
                self._blocks[event.index].complete = True
            case "message_delta":
                self.stop_reason = event.delta.stop_reason
                self._take_usage(event.usage)
                self._final_usage = True
            case "message_stop":
                self.stopped = True
        return ""

    def usage(self) -> TokenUsage:
        """What the provider said so far; output it has not counted yet is estimated from what came."""
        said = dict(self._usage)
        if said and not self._final_usage:
            estimated = -(-self.size_bytes // BYTES_PER_TOKEN)
            said["output_tokens"] = max(said.get("output_tokens", 0), estimated)
        return TokenUsage(**said)

    def content(self) -> tuple[ContentBlock, ...]:
        """The blocks, as they are sent back in the next request. A call that was cut off by the output limit is left
        out, and so is empty text, which the provider would refuse. Raises MalformedAnswer.
        """
        folded = [self._fold_block(self._blocks[index]) for index in sorted(self._blocks)]
        return tuple(block for block in folded if block is not None)

    def _take_delta(self, block: _Block, delta: Any) -> str:
        if delta.type == "input_json_delta":
            block.arguments.append(delta.partial_json)
            self.size_bytes += _size_bytes(delta.partial_json)
        elif delta.type == "citations_delta":
            block.citations.append(delta.citation.to_dict(mode="json"))
        elif (key := _TEXTS.get(delta.type)) is not None:
            text: str = getattr(delta, key)
            block.texts.setdefault(key, []).append(text)
            self.size_bytes += _size_bytes(text) if key != "signature" else 0
            return text if key == "text" else ""
        return ""

    def _take_usage(self, usage: Any) -> None:
        """Counts are cumulative; absent ones stay as they were."""
        for name in _USAGE_FIELDS:
            value = getattr(usage, name, None)
            if value is not None:
                self._usage[name] = value

    def _fold_block(self, block: _Block) -> ContentBlock | None:
        folded = {key: value for key, value in block.start.items() if value is not None}
        for key, pieces in block.texts.items():
            folded[key] = folded.get(key, "") + "".join(pieces)
        if block.citations:
            folded["citations"] = [*folded.get("citations", ()), *block.citations]
        if folded["type"] in _CALLS:
            return self._fold_call(folded, block)
        if folded["type"] == "text" and not folded.get("text", "").strip():
            return None
        return folded

    def _fold_call(self, folded: dict[str, Any], block: _Block) -> ContentBlock | None:
        text = "".join(block.arguments)
        cut_off = self.stop_reason == "max_tokens"
        if cut_off and not (block.complete and text):
            return None
        try:
            folded["input"] = json.loads(text) if text else folded.get("input") or {}
        except ValueError as error:
            if cut_off:
                return None
            raise MalformedAnswer(f"the arguments of {folded.get('name')} are no JSON: {error}") from error
        return folded


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
