"""Reads the stream of the Chat Completions API as the events of the Messages API, so that one fold checks both.

The servers behind this API differ: some send no ids or indexes of tool calls, no usage, or no last line. What has one
meaning is read; all else is a malformed answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tenure.domain.budget import TokenUsage
from tenure.model_providers.dialects import KEPT_OF_CALLS
from tenure.model_providers.stream import (
    AnswerFold,
    ErrorEvent,
    Event,
    EventStream,
    MalformedAnswer,
    count_of,
    parsed_object,
    shown,
)

DONE: Final = "[DONE]"
_CUT_OFF: Final = "length"
_TEXTS: Final = frozenset({"text", "output_text"})
_BEFORE_JSON: Final = b"\xef\xbb\xbf \t\r\n"
_STOP_REASONS: Final = {
    "stop": "end_turn",
    "eos": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    _CUT_OFF: "max_tokens",
    "content_filter": "refusal",
}
_CHAT_COUNTS: Final = ("prompt_tokens", "completion_tokens")
_RESPONSE_COUNTS: Final = ("input_tokens", "output_tokens")
_THOUGHTS: Final = ("reasoning_content", "reasoning")
"""The thoughts of some servers. They are billed as output, and kept only for a server that wants them back."""


@dataclass(slots=True)
class _Call:
    """A tool call in progress: the index of its content block, and the provider's id of it."""

    block: int
    id: str


@dataclass(slots=True)
class JsonOrEvents(EventStream):
    """Splits bytes into events. Bytes that begin a JSON object are an answer as a whole, without events."""

    _is_recognised: bool = False
    _whole: bytearray | None = None

    def keeps(self, chunk: bytes) -> bool:
        """Keeps bytes of a whole answer; False: they are of a stream. Raises MalformedAnswer for too many."""
        if not self._is_recognised and (start := chunk.lstrip(_BEFORE_JSON)):
            self._is_recognised = True
            self._whole = bytearray() if start.startswith(b"{") else None
        if self._whole is None:
            return False
        self.count(chunk)
        self._whole += chunk if self._whole else chunk.lstrip(_BEFORE_JSON)
        return True


@dataclass(slots=True)
class ChatStream(JsonOrEvents):
    """Splits bytes into chunks and yields events of the Messages API: `feed` takes bytes as they come.

    The end of the answer is the line [DONE], or the end of the stream after a finish reason. The usage comes between.
    Bytes that begin a JSON object are an answer as a whole, of a server that does not stream. `kept`: the members of an
    answer that the server wants back as they came.
    """

    fold: AnswerFold = field(default_factory=AnswerFold)
    keeps_thoughts: bool = False
    kept: Sequence[str] = ()
    _begun: bool = False
    _blocks: int = 0
    _text_block: int | None = None
    _thoughts_block: int | None = None
    _calls: dict[int, _Call] = field(default_factory=dict)
    _newest: _Call | None = None
    _kept: dict[str, Any] = field(default_factory=dict)
    _finish_reason: str = ""
    _usage: dict[str, Any] | None = None
    _is_done: bool = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yields the events that end in these bytes. Raises MalformedAnswer and ErrorEvent."""
        if self.keeps(chunk):
            return
        for event in EventStream.feed(self, chunk):
            yield from self._events(event)
            if self._is_done:
                self._finish_reason = self._finish_reason or ("stop" if self._begun else "")
                yield from self.end()
                return

    def end(self) -> Iterator[Event]:
        """Yields the end of the answer, if a finish reason came."""
        if self._whole is not None:
            yield from self._events_of_whole(self._whole.decode("utf-8", "replace"))
            self._whole = None
        if not self._finish_reason:
            return
        is_cut_off = self._finish_reason == _CUT_OFF
        for block in range(self._blocks - 1 if is_cut_off else self._blocks):  # the limit cuts the last one
            yield {"type": "content_block_stop", "index": block}
        if self._kept:
            yield self._start({"type": "reasoning", "reasoning": "", "kept": self._kept})
            yield {"type": "content_block_stop", "index": self._blocks - 1}
        stop_reason = _STOP_REASONS.get(self._finish_reason, self._finish_reason)
        if self._calls and stop_reason == "end_turn":  # as some servers say it
            stop_reason = "tool_use"
        usage = {} if self._usage is None else {"usage": self._usage}
        yield {"type": "message_delta", "delta": {"stop_reason": stop_reason}, **usage}
        yield {"type": "message_stop"}

    def _read(self, name: str, data: str) -> Event | None:
        if data.strip() == DONE:
            self._is_done = True
            return {}
        if name == "error":
            raise ErrorEvent(data)
        if not data:
            return None
        chunk = parsed_object(data)
        if chunk.get("error") is not None or chunk.get("object") == "error":
            raise ErrorEvent(data)
        return chunk

    def _events_of_whole(self, data: str) -> Iterator[Event]:
        answer = self._read("", data) or {}
        choices = answer.get("choices")
        if choices is None:  # a gateway's refusal with the status of a success
            raise ErrorEvent(data)
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise MalformedAnswer(f"the answer has no choice; received {shown(data)}")
        yield from self._events({**answer, "choices": [{**choices[0], "delta": choices[0].get("message")}]})

    def _events(self, chunk: Event) -> Iterator[Event]:
        if (usage := chunk.get("usage")) is not None:
            self._usage = usage_of(usage)
        choices = chunk.get("choices")
        if not choices:  # the chunk of the usage, or of a content filter
            return
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            raise MalformedAnswer(f"a chunk must have one choice, at index 0; received {shown(choices)}")
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": {"model": chunk.get("model") or ""}}
        delta = choice.get("delta")
        if delta is not None:
            if not isinstance(delta, dict):
                raise MalformedAnswer(f"a delta is not an object; received {shown(delta)}")
            yield from self._delta_events(delta)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self._finish_reason = self._finish_reason or reason

    def _delta_events(self, delta: dict[str, Any]) -> Iterator[Event]:
        for key in self.kept:
            if (value := delta.get(key)) is not None:
                self._keep(key, value)
        for key in _THOUGHTS:
            if piece := _optional_text(delta, key):
                yield from self._thought_events(piece)
        for piece in (_text_of(delta.get("content")), _optional_text(delta, "refusal")):
            if piece:
                yield from self._text_events(piece)
        calls = delta.get("tool_calls")
        if calls is None:
            return
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise MalformedAnswer(f"the tool calls of a delta are not a list of objects; received {shown(calls)}")
        for call in calls:
            yield from self._call_events(call)

    def _keep(self, key: str, value: object) -> None:
        """Keeps a member unread. A list comes in pieces, one for each token of a thought."""
        self.fold.keep(value)
        known = self._kept.get(key)
        if isinstance(known, list) and isinstance(value, list):
            known += value
        else:
            self._kept[key] = value

    def _thought_events(self, piece: str) -> Iterator[Event]:
        if not self.keeps_thoughts:
            self.fold.grow(len(piece.encode("utf-8", "surrogatepass")))
            return
        if self._thoughts_block is None:
            self._thoughts_block = self._blocks
            yield self._start({"type": "reasoning", "reasoning": ""})
        delta = {"type": "reasoning_delta", "reasoning": piece}
        yield {"type": "content_block_delta", "index": self._thoughts_block, "delta": delta}

    def _text_events(self, piece: str) -> Iterator[Event]:
        if self._text_block is None:
            self._text_block = self._blocks
            yield self._start({"type": "text", "text": ""})
        yield {
            "type": "content_block_delta",
            "index": self._text_block,
            "delta": {"type": "text_delta", "text": piece},
        }

    def _call_events(self, delta: dict[str, Any]) -> Iterator[Event]:
        function = delta.get("function") or {}
        if not isinstance(function, dict):
            raise MalformedAnswer(f"the function of a call is not an object; received {shown(function)}")
        call_id, name = _optional_text(delta, "id"), _optional_text(function, "name")
        call = self._known_call(delta.get("index"), call_id, name)
        if call is None:
            call = _Call(self._blocks, call_id)
            self._calls[self._index_of(delta.get("index"))] = self._newest = call
            own_id = call_id or f"call_{call.block}"
            kept = {name: delta[name] for name in KEPT_OF_CALLS if isinstance(delta.get(name), dict)}
            yield self._start({"type": "tool_use", "id": own_id, "name": name, "input": {}, **kept})
        if piece := _arguments(function):
            yield {
                "type": "content_block_delta",
                "index": call.block,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }

    def _known_call(self, index: object, call_id: str, name: str) -> _Call | None:
        """Returns the call that a delta continues, or None for a new call.

        Some servers send index 0 for every call, or none: a name with another id then begins a new call.
        """
        if index is not None and (type(index) is not int or index < 0):
            raise MalformedAnswer(f"the index of a tool call is not a number from 0; received {shown(index)}")
        call = self._newest if index is None else self._calls.get(index)
        if call is None or (name and call_id and call_id != call.id) or (name and index is None):
            return None
        return call

    def _index_of(self, index: object) -> int:
        return index if type(index) is int else -1 - self._blocks  # a key that no server sends

    def _start(self, block: dict[str, Any]) -> Event:
        event = {"type": "content_block_start", "index": self._blocks, "content_block": block}
        self._blocks += 1
        return event


def usage_of(usage: object) -> dict[str, Any]:
    """Returns a usage of Chat Completions or Responses in the members of the Messages API, which count caches apart.

    Counts that cannot be read are absent.
    """
    if not isinstance(usage, dict):
        return {}
    names = _CHAT_COUNTS if _CHAT_COUNTS[0] in usage else _RESPONSE_COUNTS
    given, output, total = map(count_of, map(usage.get, (*names, "total_tokens")))
    details = usage.get(f"{names[0]}_details")
    caches = details if isinstance(details, dict) else {}
    read, written = map(count_of, map(caches.get, ("cached_tokens", "cache_write_tokens")))
    if given is None:
        return {"output_tokens": output, "cache_creation_input_tokens": written, "cache_read_input_tokens": read}
    read = min(read or 0, given)
    written = min(written or 0, given - read)
    counted = TokenUsage.of_whole_input(given, output or 0, total or 0, written=written, read=read)
    return {**asdict(counted), "output_tokens": None if output is None else counted.output_tokens}


def _text_of(content: object) -> str:
    """Returns the text of a content: a text, or a list of parts, of which some are thoughts. Raises MalformedAnswer."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise MalformedAnswer(f"the content is neither a text nor a list of parts; received {shown(content)}")
    return "".join(_optional_text(part, "text") for part in content if _optional_text(part, "type") in _TEXTS)


def _arguments(function: dict[str, Any]) -> str:
    """Returns a piece of the arguments. Some servers send them as an object, which is the whole of them."""
    arguments = function.get("arguments")
    return json.dumps(arguments) if isinstance(arguments, dict) else _optional_text(function, "arguments")


def _optional_text(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise MalformedAnswer(f"{key} is not a string; received {shown(holder)}")
    return value or ""
