"""Reads the usage in a response that the runner passes on as it came, of any method of any vendor.

The content is the business of the vendor's own library, at the worker. So nothing of it is checked here, beyond the
size of the response, that its events are JSON, and that it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tenure.model_providers.chat_stream import DONE, JsonOrEvents, usage_of
from tenure.model_providers.stream import (
    MAX_MODEL_CHARACTERS,
    AnswerFold,
    ErrorEvent,
    Event,
    EventStream,
    parsed_object,
)

_WHOLE: Final = "whole"
_LAST: Final = frozenset({DONE, _WHOLE, "message_stop", "response.completed", "response.incomplete", "response.failed"})
_HOLDERS: Final = ("message", "response")
"""The members of an event that may hold the usage and the model, in place of the event itself."""
_OPENAI_MEMBERS: Final = frozenset({"prompt_tokens", "input_tokens_details"})
"""The members by which a usage is one of OpenAI's APIs. Anthropic's has others."""
_NOT_OUTPUT: Final = frozenset({"type", "id", "name", "role", "stop_reason", "finish_reason"})


@dataclass(frozen=True, slots=True)
class VendorBody:
    """A request as the vendor's library wrote it. `members`: of its body. `beta`: the header for features in beta."""

    path: str
    beta: str
    members: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        """Whether it asks for a stream of events."""
        return self.members.get("stream") is True


@dataclass(slots=True)
class VendorStream(JsonOrEvents):
    """Splits a response into events; a response without a stream is one event."""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yields the events that end in these bytes. Raises MalformedAnswer and ErrorEvent."""
        if not self.keeps(chunk):
            yield from EventStream.feed(self, chunk)

    def end(self) -> Iterator[Event]:
        """Yields a whole response. Raises MalformedAnswer and ErrorEvent."""
        if self._whole is not None and (event := self._read("", self._whole.decode("utf-8", "replace"))) is not None:
            yield {**event, "type": _WHOLE}

    def _read(self, name: str, data: str) -> Event | None:
        if data.strip() == DONE:
            return {"type": DONE}
        if name == "ping" or not data:
            return None
        if name == "error":
            raise ErrorEvent(data)
        event = parsed_object(data)
        if event.get("type") == "error" or (event.get("error") is not None and event.get("object") != "response"):
            raise ErrorEvent(data)
        return event


@dataclass(slots=True)
class VendorFold(AnswerFold):
    """Folds the events into the usage. It has no content."""

    def take(self, event: Event) -> str:
        """Takes one event. Returns ""."""
        kind = event.get("type")
        holder = next((event[name] for name in _HOLDERS if isinstance(event.get(name), dict)), event)
        if isinstance(model := holder.get("model"), str) and not self.model:
            self.model = model[:MAX_MODEL_CHARACTERS]
        if isinstance(usage := holder.get("usage"), dict):
            is_openai = not usage.keys().isdisjoint(_OPENAI_MEMBERS)
            if self._take_usage({"usage": usage_of(usage) if is_openai else usage}):
                self._final_usage = self._final_usage or kind != "message_start"
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self.size_bytes += _output_bytes(choice.get("delta") or choice.get("message"))
                self.stop_reason = self.stop_reason or (choice.get("finish_reason") and "stop")
        self.size_bytes += _output_bytes(event.get("delta"))
        self.stopped = self.stopped or kind in _LAST
        if self.stopped and not self.size_bytes:  # no delta came before
            self.size_bytes = _output_bytes(holder.get("content") or holder.get("output"))
        return ""


def _output_bytes(delta: object) -> int:
    """Returns the size of the output in a delta or a message, from which tokens are estimated until they are stated."""
    match delta:
        case str():
            return len(delta.encode("utf-8", "surrogatepass"))
        case dict():
            return sum(_output_bytes(value) for name, value in delta.items() if name not in _NOT_OUTPUT)
        case list():
            return sum(map(_output_bytes, delta))
        case _:
            return 0
