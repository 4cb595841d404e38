"""Answers that break the provider's protocol: valid streams with changed events, fields, JSON, lines, bytes or
responses.

The `Random` argument is the only source of randomness: a seeded one reproduces an answer, and hypothesis' own finds the
shortest answer that fails.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from devstack.simulator.delivery import RawAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

Event = dict[str, Any]
Block = tuple[Event, list[Event]]
"""The start of a content block, and its deltas."""

_CHANGES: Final = (1, 1, 1, 2, 3)
_SHARE_OF_BYTES: Final = 0.35
_CHANGES_OF_BYTES: Final = ("change_json", "change_lines", "change_bytes", "change_response")
"""The changes that are made after those of events and fields, in this order."""
MANY_CALLS: Final = (2, 3, 40, 255, 256, 300, 1200)
_HUGE: Final = 300_000
_ERROR_BODIES: Final = (
    b"", b"null", b"[" * 100_000, b"\xff\xfe", b'{"error": {"type": [], "message": 7}}',
    b'{"error": {"type": "x", "message": "\\ud83d' + b"y" * _HUGE + b'"}}',
)  # fmt: skip
_STATUSES: Final = (200, 201, 204, 206, 304, 400, 404, 413, 418, 429, 500, 502, 529, 599)


class StreamProtocol(NamedTuple):
    """The stream format of an API: a random valid stream, changes of events in place, and the bytes of an event."""

    valid_events: Callable[[Random], list[Event]]
    changes_of_events: Sequence[Callable[[Random, list[Event]], None]]
    written: Callable[[Event], bytes]


def hostile_answer(
    random: Random, events: list[Event] | None = None, protocol: StreamProtocol | None = None
) -> RawAnswer:
    """Returns a valid stream with one to three changes. `events`: the valid stream; None: a random one.

    `protocol` None: the Messages API.
    """
    protocol = protocol or StreamProtocol(valid_events, _CHANGES_OF_EVENTS, written)
    events = copy.deepcopy(events) if events is not None else protocol.valid_events(random)
    changes: list[str] = []
    for _ in range(random.choice(_CHANGES)):
        if random.random() < _SHARE_OF_BYTES or not events:
            changes.append(random.choice(_CHANGES_OF_BYTES))
            continue
        change = random.choice(protocol.changes_of_events if random.random() < 0.5 else _CHANGES_OF_FIELDS)
        changes.append(change.__name__.removeprefix("_"))
        change(random, events)
    body = b"".join(protocol.written(event) for event in events)
    if "change_json" in changes:
        body = _change_json(random, body)
    if "change_lines" in changes:
        body = _change_lines(random, body)
    if "change_bytes" in changes:
        body = _change_bytes(random, body)
    answer = RawAnswer(body, changes=changes)
    if "change_response" in changes:
        _change_response(random, answer)
    return answer


def written(event: Event) -> bytes:
    """Returns the bytes of an event, with lone surrogates as escapes."""
    return f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n".encode("utf-8", "surrogatepass")


def parsed(data: bytes) -> Event:
    """Returns the event of bytes that `written` returned."""
    return dict(json.loads(data.split(b"data: ", 1)[1]))


def valid_events(random: Random) -> list[Event]:
    """Returns the stream of a random valid answer with up to four blocks."""
    kinds = [random.choice(list(_BLOCKS)) for _ in range(random.randint(0, 4))]
    stop_reasons = ["end_turn", "end_turn", "stop_sequence", "max_tokens", "refusal", "model_context_window_exceeded"]
    reason = "tool_use" if "tool_use" in kinds else random.choice(stop_reasons)
    blocks = [_BLOCKS[kind](random, index) for index, kind in enumerate(kinds)]
    events = stream_of(blocks, reason, input_tokens=random.randint(1, 500))
    events.insert(random.randint(1, len(events)), {"type": "ping"})
    return events


def stream_of(blocks: list[Block], stop_reason: str, *, input_tokens: int = 100) -> list[Event]:
    """Returns the stream of a valid answer with these blocks."""
    usage = {"input_tokens": input_tokens, "output_tokens": 1, "cache_read_input_tokens": 0}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "sim-hostile", "content": []}
    events: list[Event] = [{"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}]
    for index, (start, deltas) in enumerate(blocks):
        events += _block_events(index, start, deltas)
    events.append({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 30}})
    return [*events, {"type": "message_stop"}]


def call_of(tool: str, arguments_json: str, tool_use_id: str = "toolu_1") -> Block:
    """Returns the tool_use block of a call."""
    start = {"type": "tool_use", "id": tool_use_id, "name": tool, "input": {}}
    return start, [{"type": "input_json_delta", "partial_json": arguments_json}]


def _block_events(index: int, start: Event, deltas: list[Event]) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _text_block(random: Random, _index: int) -> Block:
    text = random.choice(["It is done.", "漢字 \U0001f600", " ", "", '{"price": 3}'])
    start: Event = {"type": "text", "text": "", "citations": random.choice([None, []])}
    return start, [{"type": "text_delta", "text": piece} for piece in _pieces(random, text)]


def _thinking_block(random: Random, _index: int) -> Block:
    thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(random, "Let me see.")]
    start = {"type": "thinking", "thinking": "", "signature": ""}
    return start, [*thoughts, {"type": "signature_delta", "signature": "c2lnbmVk"}]


def _redacted_block(_random: Random, _index: int) -> Block:
    return {"type": "redacted_thinking", "data": "aGlkZGVu"}, []


def _call_block(random: Random, index: int) -> Block:
    name, arguments = random.choice(
        [
            ("write_file", {"path": "a.txt", "content": "caf\u00e9 \U0001f600"}),
            ("list_files", {"path": "."}),
            ("append_record", {"file": "hostile", "line": "1.5", "n": [1.5, None, {"a": True}]}),
        ]
    )
    start = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}
    pieces = _pieces(random, json.dumps(arguments, ensure_ascii=random.random() < 0.5))
    return start, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


_BLOCKS: Final = {
    "text": _text_block,
    "thinking": _thinking_block,
    "redacted_thinking": _redacted_block,
    "tool_use": _call_block,
}


def _pieces(random: Random, text: str) -> list[str]:
    size = random.choice([1, 5, 80])
    return [text[at : at + size] for at in range(0, len(text), size)]


# Events


def _drop_event(random: Random, events: list[Event]) -> None:
    events.pop(random.randrange(len(events)))


def _repeat_event(random: Random, events: list[Event]) -> None:
    at = random.randrange(len(events))
    events[at:at] = [copy.deepcopy(events[at])] * random.choice([1, 1, 50])


def _swap_events(random: Random, events: list[Event]) -> None:
    one, other = random.randrange(len(events)), random.randrange(len(events))
    events[one], events[other] = events[other], events[one]


def _cut_events(random: Random, events: list[Event]) -> None:
    del events[random.randrange(len(events)) :]


def _insert_event(random: Random, events: list[Event]) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded \ud83d"}}
    rejected = {"type": "error", "error": {"type": "invalid_request_error", "message": "x" * 5000}}
    strange: Event = {"type": "error", "error": random.choice([None, [], "bad", {"type": ["x"], "message": {}}])}
    start: Event = {"type": "message_start", "message": {"model": "other", "usage": {"input_tokens": 7}}}
    news = {"type": "message_news", "news": 1}
    song = {"type": "content_block_delta", "index": 0, "delta": {"type": "song_delta", "song": "la"}}
    poem = {"type": "content_block_start", "index": 0, "content_block": {"type": "poem", "verses": []}}
    chosen: Event = random.choice(
        [overloaded, rejected, strange, start, news, song, poem, {"type": "message_stop"}, {}]
    )
    events.insert(random.randrange(len(events) + 1), copy.deepcopy(chosen))


def _add_calls(random: Random, events: list[Event]) -> None:
    """Adds up to 1,200 calls after the blocks of the answer, perhaps all with one id."""
    count, has_one_id = random.choice(MANY_CALLS), random.random() < 0.3
    index = sum(event.get("type") == "content_block_start" for event in events)
    added: list[Event] = []
    for more in range(index, index + count):
        start, deltas = _call_block(random, more)
        added += _block_events(more, {**start, "id": "toolu_same" if has_one_id else start["id"]}, deltas)
    at = next((at for at, event in enumerate(events) if event.get("type") == "message_delta"), len(events))
    for event in events[at:]:
        if isinstance(event.get("delta"), dict):
            event["delta"]["stop_reason"] = "tool_use"
    events[at:at] = added


def _shift_indexes(random: Random, events: list[Event]) -> None:
    at, by = random.randrange(len(events)), random.choice([-1, 1, 7, 2**40])
    for event in events[at:]:
        if isinstance(event.get("index"), int):
            event["index"] += by


def _cut_input(random: Random, events: list[Event]) -> None:
    """Cuts the JSON of a tool's input, so that the message ends within it."""
    pieces = [event for event in events if "partial_json" in _delta_of(event)]
    for event in pieces[random.randrange(len(pieces)) :] if pieces else []:
        events.remove(event)


def _poison_input(random: Random, events: list[Event]) -> None:
    """Replaces a tool's input, or a part of it, by invalid JSON or by JSON that a client must refuse."""
    pieces = [event for event in events if "partial_json" in _delta_of(event)]
    if not pieces:
        return
    poisoned = random.choice(pieces)
    poisoned["delta"]["partial_json"] = random.choice(JSON_TEXTS)
    if random.random() < 0.8:
        for event in pieces:
            if event is not poisoned and event.get("index") == poisoned.get("index"):
                event["delta"]["partial_json"] = ""


JSON_TEXTS: Final = (
    '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', '{"path": "caf\\ud83d"}', '{"\\ude00": 1}',
    "[1]", "null", '"x"', "{", '{"a": 1}{', "{'a': 1}", "[" * 5000, '{"a":' * 200 + "1" + "}" * 200, "\ud83d", "\x00",
    '{"path": "a\\u0000b.txt"}', '{"n": ' + "9" * 400 + "}", '{"n": ' + "9" * 6000 + "}",
    '{"a": "' + "x" * _HUGE + '"}',
)  # fmt: skip
CHANGES_OF_ORDER: Final = [_drop_event, _repeat_event, _swap_events, _cut_events]
"""The changes that fit the events of any API."""
_CHANGES_OF_EVENTS: Final = [
    *CHANGES_OF_ORDER, _insert_event, _insert_event, _add_calls, _shift_indexes, _cut_input, _poison_input,
    _poison_input,
]  # fmt: skip


def _delta_of(event: Event) -> Event:
    delta = event.get("delta")
    return delta if isinstance(delta, dict) else {}


# Fields


def _replace_field(random: Random, events: list[Event]) -> None:
    holder, key = _any_field(random, events)
    if key is not None:
        holder[key] = copy.deepcopy(random.choice(_VALUES))


def _change_kind(random: Random, events: list[Event]) -> None:
    """Replaces a field by another value of the same type."""
    holder, key = _any_field(random, events)
    value = None if key is None else holder[key]
    if isinstance(value, str):
        holder[key] = random.choice([value + "\ud83d", "\udc00" + value, value + "\x00", value * 1000, value[:-1], " "])
    elif isinstance(value, int):
        holder[key] = random.choice([-value - 1, value + 1, value * 10**9, 2**63, 2**64, 10**30, float(value)])


def _drop_field(random: Random, events: list[Event]) -> None:
    holder, key = _any_field(random, events)
    if key is not None:
        del holder[key]


def _add_field(random: Random, events: list[Event]) -> None:
    holder, key = _any_field(random, events)
    if isinstance(holder, dict) and key is not None:
        holder[random.choice(["text", "id", "index", "input", "citations", "news", "usage", "\ud83d"])] = copy.deepcopy(
            random.choice(_VALUES)
        )


def _any_field(random: Random, events: list[Event]) -> tuple[Any, Any]:
    """Returns an object or list of the events, and a key of it: each field is as likely. The key is None for none."""
    fields = [field for event in events for field in _fields(event)]
    return random.choice(fields) if fields else ({}, None)


def _fields(holder: Any) -> Iterator[tuple[Any, Any]]:
    for key in holder if isinstance(holder, dict) else range(len(holder)):
        if isinstance(holder[key], dict | list):
            yield from _fields(holder[key])
        yield holder, key


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63, -(2**63), 10**30, "", "x", "\ud83d", "a\udc00b", "\x00", "\x1b[2J",
    "../..", "tool_use", "text", "end_turn", "max_tokens", "pause_turn", [], {}, [None], {"type": "text"}, {"": ""},
    "y" * _HUGE, [[]] * 3, _nested(20), _nested(200), "no such tool", "ask_user", "spawn_sub_agents", float("nan"),
)  # fmt: skip
_CHANGES_OF_FIELDS: Final = [_replace_field, _change_kind, _drop_field, _add_field]


# JSON, lines, bytes, responses


def _change_json(random: Random, body: bytes) -> bytes:
    """Replaces a token in the JSON of an event."""
    sought, instead = random.choice(
        [
            (b": 1", b": NaN"), (b": 1", b": Infinity"), (b": 1", b": 1e999"), (b": 1", b": 01"),
            (b"}", b""), (b"}", b",}"),
            (b'"', b"'"), (b'"', b""), (b'"type":', b'"type": "x", "type":'), (b'"index":', b'"index": 0, "index":'),
            (b"{", b"{" * 500), (b"[", b"[" * 100_000), (b'": "', b'": "\\ud83d'), (b'": "', b'": "\\u0000'),
            (b"data: {", b"data: "), (b"data: {", b"data: []{"), (b"data: ", b"data: \xef\xbb\xbf"),
        ]
    )  # fmt: skip
    occurrences = body.count(sought)
    if not occurrences:
        return body
    head = body.split(sought, random.randint(1, occurrences))
    return sought.join(head[:-1]) + instead + head[-1]


def _change_lines(random: Random, body: bytes) -> bytes:
    lines = body.split(b"\n")
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(lines))
        instead = random.choice(
            [
                [], [lines[at], lines[at]], [b""], [b": hello", lines[at]], [lines[at][: len(lines[at]) // 2]],
                [lines[at][: len(lines[at]) // 2], lines[at][len(lines[at]) // 2 :]], [lines[at] + b"\r"], [b"\x00"],
                [b"data: [DONE]"], [b"event: content_block_delta", lines[at]], [b"event: error", lines[at]],
                [lines[at].replace(b"data:", b"date:")], [b"retry: x", lines[at]], [lines[at], b"data: x"],
                [lines[at].replace(b" ", b"", 1)], [b"<html><body>Bad gateway</body></html>"], [b"x" * 200_000],
            ]
        )  # fmt: skip
        lines[at : at + 1] = instead
    line_end: bytes = random.choice([b"\n", b"\n", b"\r\n", b"\r"])
    return line_end.join(lines)


def _change_bytes(random: Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        instead = random.choice([b"", b"\x00", b"\xff", b"\xed\xa0\xbd", b"\n", b"\n\n", b'"', b"\\", b"\xc3", b"7"])
        changed[at : at + random.randint(0, 3)] = instead
    return bytes(changed[: random.randint(0, len(changed))] if random.random() < 0.2 else changed)


def _change_response(random: Random, answer: RawAnswer) -> None:
    """Changes the status, the body, a header or the end of the response."""
    match random.randrange(4):
        case 0:
            answer.is_cut = True
        case 1:
            answer.status = random.choice(_STATUSES)
        case 2:
            answer.status = random.choice(_STATUSES)
            answer.body = random.choice(_ERROR_BODIES)
        case _:
            name, value = random.choice(
                [
                    ("content-encoding", "gzip"), ("content-encoding", "nonsense"), ("content-type", "text/html"),
                    ("content-type", "text/event-stream; charset=utf-7"), ("request-id", "\xff" * 300),
                    ("request-id", "x" * 20_000), ("retry-after", "9" * 400), ("location", "http://127.0.0.1:1/"),
                ]
            )  # fmt: skip
            answer.headers[name] = value
    if answer.status >= 400 and random.random() < 0.5:
        answer.headers["retry-after"] = random.choice(
            ["-1", "nan", "1e400", "0", ".", "Mon, 99 Foo 99999999999 00:00:00 GMT"]
        )
