"""The provider's event stream, from bytes to JSON objects. Strict and bounded: whoever sends it is a stranger.

The provider's library drops events without a name or without data, keeps the last of two members with one name, and
takes NaN. A piece of an answer would be missing or changed, and nobody would know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.strict_json import depth_of, escaped, strict_json

MOST_STREAM_BYTES: Final = 64 * 1024 * 1024
"""Of one answer: 64,000 tokens of output with an event of a kilobyte for each."""
MOST_EVENT_BYTES: Final = 8 * 1024 * 1024

MOST_DEPTH: Final = 64
"""Of nesting, so that everything that came can be written again."""

_SHOWN_CHARACTERS: Final = 200
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Event = dict[str, Any]
"""An event's data; its `type` is a text."""


class MalformedAnswer(Exception):  # noqa: N818  it is the answer that is malformed
    """What the provider sent cannot be read as an answer. Says what was received."""


class ErrorEvent(Exception):  # noqa: N818  what the provider said, no error of ours
    """The provider ended its stream with an error. `data`: as it was sent, JSON or not."""

    def __init__(self, data: str) -> None:
        super().__init__(shown(data))
        self.data = data


def shown(received: object) -> str:
    """What was received, for a message: short, in quotes, and only what can be printed."""
    text = received if isinstance(received, str) else repr(received)
    return f'"{escaped(text, _SHOWN_CHARACTERS)}"'


@dataclass(slots=True)
class EventStream:
    """Give `feed` the bytes as they come; it yields the events that are whole. `size_bytes`: of all that came."""

    size_bytes: int = 0
    _pieces: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    _is_after_return: bool = False
    _name: str = ""
    _data: list[str] = field(default_factory=list)
    _event_bytes: int = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end in this chunk, without pings. Raises MalformedAnswer and ErrorEvent."""
        if not self.size_bytes:
            chunk = chunk.removeprefix(_BYTE_ORDER_MARK)
        self.size_bytes += len(chunk)
        if self.size_bytes > MOST_STREAM_BYTES:
            raise MalformedAnswer(f"the answer's stream has more than {MOST_STREAM_BYTES} bytes")
        for line in self._lines(chunk):
            event = self._take_line(line)
            if event is not None:
                yield event

    def _lines(self, chunk: bytes) -> list[bytes]:
        """The lines that are whole. A line feed at the beginning may belong to the carriage return before it."""
        if self._is_after_return:
            chunk = chunk.removeprefix(b"\n")
        self._is_after_return = chunk.endswith(b"\r")
        self._pieces.append(chunk)
        self._waiting_bytes += len(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            if self._waiting_bytes > MOST_EVENT_BYTES:
                raise MalformedAnswer(f"an event has more than {MOST_EVENT_BYTES} bytes")
            return []
        lines = b"".join(self._pieces).splitlines()
        rest = b"" if chunk.endswith((b"\n", b"\r")) else lines.pop()
        self._pieces, self._waiting_bytes = [rest], len(rest)
        return lines

    def _take_line(self, line: bytes) -> Event | None:
        if not line:
            return self._end_event()
        self._event_bytes += len(line)
        if self._event_bytes > MOST_EVENT_BYTES:
            raise MalformedAnswer(f"an event has more than {MOST_EVENT_BYTES} bytes")
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise MalformedAnswer(f"a line of the stream is no UTF-8: {shown(line[:_SHOWN_CHARACTERS])}") from error
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        return None  # comments, and fields that an answer does not use

    def _end_event(self) -> Event | None:
        name, data, has_data = self._name, "\n".join(self._data), bool(self._data)
        self._name, self._data, self._event_bytes = "", [], 0
        if name == "ping" or not (name or has_data):
            return None
        if name == "error":
            raise ErrorEvent(data)
        event = _parsed(name, data)
        if event["type"] == "error":
            raise ErrorEvent(data)
        return None if event["type"] == "ping" else event


def _parsed(name: str, data: str) -> Event:
    """An event without a name is one of the type that its data says: some servers send no names."""
    try:
        event: Event = strict_json(data, unique_names=True)
    except (ValueError, RecursionError) as error:
        why = escaped(str(error), _SHOWN_CHARACTERS)
        raise MalformedAnswer(f"an event's data cannot be read as JSON ({why}); received {shown(data)}") from error
    if depth_of(event) > MOST_DEPTH:
        raise MalformedAnswer(f"an event's data nests more than {MOST_DEPTH} deep; received {shown(data)}")
    kind = event.get("type") if isinstance(event, dict) else None
    if not isinstance(kind, str) or (name and name != kind):
        raise MalformedAnswer(f"an event named {shown(name)} has data of another type; received {shown(data)}")
    return event
