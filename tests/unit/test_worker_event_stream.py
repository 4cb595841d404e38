"""Server-sent events out of bytes: whole ones, however they are cut, and nothing that was not read strictly."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.model_providers.stream import (
    MAX_DEPTH,
    MAX_EVENT_BYTES,
    ErrorEvent,
    EventStream,
    MalformedAnswer,
)

EVENTS = [{"type": "a", "text": "ä\U0001f600\u2028\x85 b"}, {"type": "b", "n": 1.5}]


def written(events: Any, line_end: str = "\n") -> Any:
    lines = [(f"event: {one['type']}", f"data: {json.dumps(one, ensure_ascii=False)}", "", "") for one in events]
    return line_end.join(line for four in lines for line in four).encode()


def read(*chunks: Any) -> Any:
    stream = EventStream()
    return [event for chunk in chunks for event in stream.feed(chunk)]


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200), max_size=6), st.booleans())
@example(line_end="\r\n", cuts=[12, 12], has_mark=True)  # an empty piece between a return and its line feed
def test_events_are_read_however_their_bytes_are_cut(line_end: str, cuts: list[int], has_mark: bool) -> None:
    sent = (b"\xef\xbb\xbf" if has_mark else b"") + written(EVENTS, line_end)
    places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    if has_mark:
        places = [0, *(place for place in places if place >= 3)]
    assert read(*(sent[a:b] for a, b in itertools.pairwise(places))) == EVENTS


def test_events_are_read_byte_by_byte() -> None:
    assert read(*(bytes([one]) for one in written(EVENTS, "\r\n"))) == EVENTS


def test_an_event_without_a_name_has_the_type_of_its_data() -> None:
    assert read(b'data: {"type":\ndata: "a"}\n\n') == [{"type": "a"}]


def test_comments_pings_and_unknown_fields_are_ignored() -> None:
    assert (
        read(b': hi\n\nevent: ping\n\nevent: ping\ndata: {"type": "ping"}\n\ndata: {"type":"ping"}\nid: 3\n\n\n') == []
    )


def test_unfinished_event_is_ignored() -> None:
    assert read(b'event: a\ndata: {"type": "a"}\n') == []


@pytest.mark.parametrize(
    "sent",
    [
        b"event: a\n\n",
        b"event: a\ndata:\n\n",
        b'event: a\ndata: {"type": "b"}\n\n',
        b'event: a\ndata: {"type": "a"\n\n',
        b'event: a\ndata: {"type": "a", "x": NaN}\n\n',
        b'event: a\ndata: {"type": "a", "x": 1e999}\n\n',
        b'event: a\ndata: {"type": "a", "type": "a"}\n\n',
        b"event: a\ndata: []\n\n",
        b"event: a\ndata: null\n\n",
        b"data: [DONE]\n\n",
        b'data: {"type": 7}\n\n',
        b'data: {"type": "a", "x": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}\n\n",
        b"data: " + b"[" * 1_000_000 + b"\n\n",
        b'data: {"type": "a", "x": "\xff"}\n\n',
        b'data: {"type": "a", "x": "\xed\xa0\xbd"}\n\n',
        b"x" * (MAX_EVENT_BYTES + 1) + b"\n",
        b"data: x\n" * (MAX_EVENT_BYTES // 7 + 1),
    ],
    ids=range(17),
)
def test_unreadable_data_is_malformed_with_its_text(sent: Any) -> None:
    with pytest.raises(MalformedAnswer) as malformed:
        read(*(sent[at : at + 100_000] for at in range(0, len(sent), 100_000)))
    assert len(str(malformed.value)) < 1000
    assert str(malformed.value).isprintable()


@pytest.mark.parametrize(
    "sent",
    [b"event: error\ndata: {}\n\n", b"event: error\n\n", b'data: {"type": "error"}\n\n', b"event:error\ndata: x\n\n"],
)
def test_error_event_is_an_error(sent: bytes) -> None:
    with pytest.raises(ErrorEvent):
        read(sent)
