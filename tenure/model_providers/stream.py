"""Folds the provider's stream events into content blocks and usage.

Every accepted block can be stored, read again and sent back. A complete answer is paid for, so what has one meaning is
read: a call whose arguments cannot be read is marked UNUSABLE and the model reads why, the content decides what an
unknown stop reason means, blocks of unknown types are left out, and counts that cannot be read are estimated. Any other
deviation from the stream protocol is a malformed answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.budget import TokenUsage
from tenure.domain.entries import ContentBlock
from tenure.domain.texts import estimated_tokens
from tenure.domain.tool_arguments import escaped, is_deeper, strict_json, well_formed, well_formed_value

# The provider's event stream, from bytes to JSON objects. Strict and bounded, because the endpoint is not trusted.

MAX_STREAM_BYTES: Final = 64 * 1024 * 1024
"""The limit of one answer: 64,000 tokens of output with an event of a kilobyte for each."""
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024

MAX_DEPTH: Final = 64
"""The maximum nesting, so that all received JSON can be written again."""

_SHOWN_CHARACTERS: Final = 200
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Event = dict[str, Any]
"""The data of an event; its `type` is a string."""


UNUSABLE: Final = "unusable"
"""The member of a call's block that says why the call cannot be run. The worker removes it and gives it its outcome."""
CUT_OFF_CALL: Final = "This call was cut off at the output limit and was not run: send it again, smaller."


class MalformedAnswer(Exception):  # noqa: N818  describes the answer
    """The provider's stream is not a readable answer. The message quotes the received data."""


class StreamBroken(MalformedAnswer):
    """The stream ended before the end of the answer."""


class AnswerTooLong(MalformedAnswer):
    """The answer exceeds a limit in bytes."""


class ForeignAnswer(MalformedAnswer):
    """Something that is not the provider has answered, such as the sign-in page of a proxy."""


class ErrorEvent(Exception):  # noqa: N818  the provider's statement, not an error of this program
    """The provider ended its stream with an error. `data`: as received, JSON or not."""

    def __init__(self, data: str) -> None:
        super().__init__(shown(data))
        self.data = data


def shown(received: object) -> str:
    """Quotes received data for a message: short and printable."""
    text = received if isinstance(received, str) else repr(received)
    return f'"{escaped(text, _SHOWN_CHARACTERS)}"'


@dataclass(slots=True)
class EventStream:
    """Splits bytes into events: `feed` takes bytes as they come and yields complete events.

    `size_bytes` is the total of received bytes.
    """

    size_bytes: int = 0
    _pieces: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    _is_after_return: bool = False
    _name: str = ""
    _data: list[str] = field(default_factory=list)
    _event_bytes: int = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yields the events that end in this chunk, without pings. Raises MalformedAnswer and ErrorEvent."""
        if not chunk:  # it says nothing about a line feed that may belong to the carriage return before
            return
        if not self.size_bytes:
            chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
        self.count(chunk)
        for line in self._lines(chunk):
            event = self._take_line(line)
            if event is not None:
                yield event

    def count(self, chunk: bytes) -> None:
        """Counts received bytes. Raises MalformedAnswer for too many."""
        self.size_bytes += len(chunk)
        if self.size_bytes > MAX_STREAM_BYTES:
            raise AnswerTooLong(f"the answer's stream has more than {MAX_STREAM_BYTES} bytes")

    def end(self) -> Iterator[Event]:
        """Yields the events that only the end of the stream completes: none in this protocol."""
        return iter(())

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Returns the complete lines. A leading line feed may belong to the carriage return of the chunk before."""
        if self._is_after_return:
            chunk = chunk.removeprefix(b"\n")
        self._is_after_return = chunk.endswith(b"\r")
        self._pieces.append(chunk)
        self._waiting_bytes += len(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            if self._waiting_bytes > MAX_EVENT_BYTES:
                raise AnswerTooLong(f"an event has more than {MAX_EVENT_BYTES} bytes")
            return []
        lines = b"".join(self._pieces).splitlines()
        rest = b"" if chunk.endswith((b"\n", b"\r")) else lines.pop()
        self._pieces, self._waiting_bytes = [rest], len(rest)
        return lines

    def _take_line(self, line: bytes) -> Event | None:
        if not line:
            return self._end_event()
        self._event_bytes += len(line)
        if self._event_bytes > MAX_EVENT_BYTES:
            raise AnswerTooLong(f"an event has more than {MAX_EVENT_BYTES} bytes")
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise MalformedAnswer(f"a line of the stream is not UTF-8: {shown(line[:_SHOWN_CHARACTERS])}") from error
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        return None  # comments, and fields that an answer does not use

    def _end_event(self) -> Event | None:
        name, data, has_data = self._name, "\n".join(self._data), bool(self._data)
        self._name, self._data, self._event_bytes = "", [], 0
        return self._read(name, data) if name or has_data else None

    def _read(self, name: str, data: str) -> Event | None:
        """Reads an event of the Messages API. One without a name has the type of its data: some servers send none."""
        if name == "ping":
            return None
        if name == "error":
            raise ErrorEvent(data)
        event = parsed_object(data)
        kind = event.get("type")
        if not isinstance(kind, str) or (name and name != kind):
            raise MalformedAnswer(f"an event named {shown(name)} has data of another type; received {shown(data)}")
        if kind == "error":
            raise ErrorEvent(data)
        return None if kind == "ping" else event


def parsed_object(data: str) -> Event:
    """Parses the data of an event. Raises MalformedAnswer unless it is a JSON object of limited depth."""
    try:
        event: Event = strict_json(data, unique_names=True)
    except (ValueError, RecursionError) as error:
        why = escaped(str(error), _SHOWN_CHARACTERS)
        raise MalformedAnswer(f"an event's data cannot be read as JSON ({why}); received {shown(data)}") from error
    if is_deeper(data, event, MAX_DEPTH):
        raise MalformedAnswer(f"an event's data nests more than {MAX_DEPTH} deep; received {shown(data)}")
    if not isinstance(event, dict):
        raise MalformedAnswer(f"an event's data is not a JSON object; received {shown(data)}")
    return event


_USAGE_FIELDS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
MAX_TOKENS: Final = 100_000_000
"""The limit of one usage count: ten times the largest context window. A larger number is not a count."""
MAX_CONTENT_BYTES: Final = 4 * 1024 * 1024
"""The limit of an answer's content: several times the size of a commit, so that an endless stream is stopped."""
MAX_BLOCKS: Final = 4096
MAX_MODEL_CHARACTERS: Final = 200

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
"""The tool names that the provider accepts back: any other name would make every later request fail."""

_EVENTS: Final = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }
)
_CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_OWN_FIELDS: Final = {
    "text": ("text", "citations"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "reasoning": ("reasoning", "kept"),
    "tool_use": ("id", "name", "input", "extra_content", "provider_specific_fields"),
}
"""The members of these blocks that are kept: the provider refuses an unknown member when it is sent back.

Only chat servers send `reasoning`, and the last two members of calls (dialects.py), and only they get them back.
"""
_SERVER_BLOCKS: Final = re.compile(r"(server_tool_use|mcp_tool_use|container_upload|[a-z_]+_tool_result)\Z")
_DELTAS: Final = {
    "text_delta": ("text", frozenset({"text"})),
    "thinking_delta": ("thinking", frozenset({"thinking"})),
    "reasoning_delta": ("reasoning", frozenset({"reasoning"})),
    "signature_delta": ("signature", frozenset({"thinking"})),
    "input_json_delta": ("partial_json", _CALLS),
}
"""The member of a delta that carries the piece, and the block types that it may belong to."""

_CUT_OFF: Final = "max_tokens"
_MAX_REASON_CHARACTERS: Final = 64


@dataclass(slots=True)
class _Block:
    """One content block in progress: pieces as lists, joined once. `is_known` False: the block is left out."""

    start: dict[str, Any]
    is_known: bool = True
    pieces: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)
    complete: bool = False

    @property
    def kind(self) -> str:
        return str(self.start["type"])

    def joined(self, key: str) -> str:
        return well_formed("".join(self.pieces.get(key, ())))


@dataclass(slots=True)
class AnswerFold:
    """Folds events into an answer. `content()` and `usage()` may be read at any time.

    `stopped`: the answer's last event was taken; later events of the stream do not belong to the answer.
    """

    model: str = ""
    stop_reason: str | None = None
    size_bytes: int = 0
    stopped: bool = False
    _begun: bool = False
    _blocks: list[_Block] = field(default_factory=list)
    _usage: dict[str, int] = field(default_factory=dict)
    _final_usage: bool = False
    _kept_bytes: int = 0

    def take(self, event: Event) -> str:
        """Folds one event in. Returns the piece of visible text that it brought, or "". Raises MalformedAnswer.

        Ignores events of unknown types: the provider announces that it may add some.
        """
        kind = event["type"]
        if self.stopped or kind not in _EVENTS:
            return ""
        if self._begun == (kind == "message_start"):
            raise MalformedAnswer(f"an answer must have one message_start, at its beginning; received {shown(event)}")
        match kind:
            case "message_start":
                self._start_message(event)
            case "content_block_start":
                self._start_block(event)
            case "content_block_delta":
                return self._take_delta(event)
            case "content_block_stop":
                self._open_block(event).complete = True
            case "message_delta":
                self._delta_message(event)
            case "message_stop":
                self._stop_message()
        return ""

    def usage(self) -> TokenUsage:
        """Returns the usage that the provider stated so far.

        Output that it has not counted yet is estimated from the text.
        """
        message = dict(self._usage)
        if not self._final_usage:
            message["output_tokens"] = max(message.get("output_tokens", 0), estimated_tokens(self.size_bytes))
        return TokenUsage(**message)

    def is_usage_stated(self) -> bool:
        """Whether the provider stated the input and the final output."""
        stated = TokenUsage(**self._usage)
        return self._final_usage and stated.total > stated.output_tokens

    def content(self) -> tuple[ContentBlock, ...]:
        """Returns the content blocks in the form that the next request sends back.

        Leaves out blocks of unknown types, and empty text, which the provider would refuse. A call that cannot be run
        has the member UNUSABLE.
        """
        folded = [self._fold_block(block) for block in self._blocks if block.is_known]
        return tuple(block for block in folded if block is not None)

    def stop_reason_of(self, content: tuple[ContentBlock, ...]) -> str:
        """Returns the stop reason; "end_turn" for one that the content contradicts, and for none."""
        kinds = {block["type"] for block in content}
        lacks_calls = (self.stop_reason == "tool_use" and "tool_use" not in kinds) or (
            self.stop_reason == "pause_turn" and kinds.isdisjoint(_CALLS)
        )
        return "end_turn" if lacks_calls or not self.stop_reason else self.stop_reason

    def _start_message(self, event: Event) -> None:
        self._begun = True
        message = _object(event, "message")
        model = message.get("model", "")
        if not isinstance(model, str):
            raise MalformedAnswer(f"the model's name is not a string; received {shown(model)}")
        self.model = well_formed(model)[:MAX_MODEL_CHARACTERS]
        self._take_usage(message)

    def _start_block(self, event: Event) -> None:
        if event.get("index") != len(self._blocks) or len(self._blocks) >= MAX_BLOCKS:
            message = f"received content block {shown(event.get('index'))}, expected block {len(self._blocks)}"
            raise MalformedAnswer(f"{message}, of at most {MAX_BLOCKS}")
        start = _object(event, "content_block")
        kind = _text(start, "type")
        is_known = kind in _OWN_FIELDS or _SERVER_BLOCKS.match(kind) is not None
        kept = _checked_start(kind, start) if is_known else {"type": kind}
        self.keep(kept)
        self._blocks.append(_Block(kept, is_known))

    def _take_delta(self, event: Event) -> str:
        block = self._open_block(event)
        delta = _object(event, "delta")
        kind = _text(delta, "type")
        if kind == "citations_delta" and block.kind == "text":
            citation = _object(delta, "citation")
            self.keep(citation)
            block.citations.append(well_formed_value(citation))
            return ""
        if kind not in _DELTAS or not block.is_known:
            self.grow(len(json.dumps(delta)))
            return ""
        key, of_blocks = _DELTAS[kind]
        if block.kind not in of_blocks:
            raise MalformedAnswer(f"a delta of type {shown(kind)} came for a block of type {shown(block.kind)}")
        piece = _text(delta, key)
        block.pieces.setdefault(key, []).append(piece)
        if key == "signature":
            self.keep(piece)
        else:
            self.grow(len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass")))
        return well_formed(piece) if key == "text" else ""

    def _delta_message(self, event: Event) -> None:
        if self._take_usage(event):
            self._final_usage = True
        reason = _object(event, "delta").get("stop_reason")
        if reason and isinstance(reason, str):
            self.stop_reason = escaped(reason, _MAX_REASON_CHARACTERS)

    def _stop_message(self) -> None:
        if self.stop_reason != _CUT_OFF and not all(block.complete for block in self._blocks):
            raise MalformedAnswer("the answer ended in the middle of a content block")
        self.stopped = True

    def _open_block(self, event: Event) -> _Block:
        index = event.get("index")
        if type(index) is not int or not 0 <= index < len(self._blocks) or self._blocks[index].complete:
            raise MalformedAnswer(f"an event belongs to no open content block; received {shown(event)}")
        return self._blocks[index]

    def grow(self, size_bytes: int) -> None:
        """Counts bytes of output, also of output that the answer does not keep. Raises MalformedAnswer."""
        self.size_bytes += size_bytes
        self._check_size()

    def keep(self, value: object) -> None:
        """Counts what is kept and is not output, such as the results of the provider's own tools."""
        self._kept_bytes += len(json.dumps(value))
        self._check_size()

    def _check_size(self) -> None:
        if self.size_bytes + self._kept_bytes > MAX_CONTENT_BYTES:
            raise MalformedAnswer(f"the answer has more than {MAX_CONTENT_BYTES} bytes")

    def _take_usage(self, holder: dict[str, Any]) -> bool:
        """Stores usage counts, which are cumulative; a count that is absent or cannot be read stays as it was.

        Returns whether output was counted.
        """
        usage = holder.get("usage")
        counts = {name: count_of(usage.get(name)) for name in _USAGE_FIELDS} if isinstance(usage, dict) else {}
        message = {name: count for name, count in counts.items() if count is not None}
        self._usage.update(message)
        return "output_tokens" in message

    def _fold_block(self, block: _Block) -> ContentBlock | None:
        folded = {key: value for key, value in block.start.items() if value is not None}
        for key in block.pieces.keys() - {"partial_json"}:
            folded[key] = folded.get(key, "") + block.joined(key)
        if block.citations:
            folded["citations"] = [*folded.get("citations", ()), *block.citations]
        if block.kind in _CALLS:
            return self._fold_call(folded, block)
        is_empty_text = block.kind == "text" and not folded["text"].strip()
        # the provider refuses a thought without its signature
        is_half_a_thought = block.kind == "thinking" and not block.complete
        return None if is_empty_text or is_half_a_thought else folded

    def _fold_call(self, folded: dict[str, Any], block: _Block) -> ContentBlock | None:
        text = "".join(block.pieces.get("partial_json", ()))
        is_cut_off = self.stop_reason == _CUT_OFF
        if is_cut_off and not (block.complete and text):
            return _unusable_call(folded, CUT_OFF_CALL)
        try:
            folded["input"] = _arguments(text) if text else folded["input"]
        except ValueError as error:
            why = f"The arguments cannot be read as a JSON object: {shown(str(error))}; received {shown(text)}"
            return _unusable_call(folded, CUT_OFF_CALL if is_cut_off else why)
        return folded


def _unusable_call(folded: dict[str, Any], why: str) -> ContentBlock | None:
    """Returns a call that is not run. The provider's own calls are left out: nothing here answers them."""
    return {**folded, "input": {}, UNUSABLE: why} if folded["type"] == "tool_use" else None


def count_of(value: object) -> int | None:
    """Returns a count of tokens that a provider states, also as 50.0; None: it cannot be read as one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def _checked_start(kind: str, start: dict[str, Any]) -> dict[str, Any]:
    """Returns the members of a block's start. Raises MalformedAnswer when a required member is missing."""
    kept = {key: start[key] for key in _OWN_FIELDS[kind] if key in start} if kind in _OWN_FIELDS else dict(start)
    try:
        kept = {"type": kind, **well_formed_value(kept)}
    except ValueError as error:
        raise MalformedAnswer(f"a content block cannot be read: {shown(str(error))}") from error
    if kind in {"text", "thinking", "reasoning"}:
        kept = {**kept, kind: kept.get(kind) or ""}
    if kept.get("signature") is not None:
        _text(kept, "signature")
    if kind in {"text", "thinking", "redacted_thinking"}:
        _text(kept, "data" if kind == "redacted_thinking" else kind)
    if not isinstance(kept.get("citations"), list | None):
        raise MalformedAnswer(f"the citations of a text are not a list; received {shown(kept['citations'])}")
    return _checked_call(kept) if kind in _CALLS else kept


def _checked_call(start: dict[str, Any]) -> dict[str, Any]:
    _text(start, "id")
    name = _text(start, "name")
    if not TOOL_NAME.match(name):
        raise MalformedAnswer(f"a call has an invalid tool name: {shown(name)}")
    return {**start, "input": _object(start, "input") if start.get("input") is not None else {}}


def _arguments(text: str) -> dict[str, Any]:
    """Parses a tool call's arguments. Raises ValueError."""
    try:
        value = strict_json(text, unique_names=True)
    except RecursionError as error:
        raise ValueError("they nest too deeply") from error
    if not isinstance(value, dict) or is_deeper(text, value, MAX_DEPTH):
        raise ValueError(f"they must be a JSON object that nests at most {MAX_DEPTH} deep")
    return dict(well_formed_value(value))


def _text(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise MalformedAnswer(f"{key} is not a string; received {shown(holder)}")
    return value


def _object(holder: dict[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    if not isinstance(value, dict):
        raise MalformedAnswer(f"{key} is not an object; received {shown(holder)}")
    return value
