"""Bytes that were a message and are damaged: cut, changed, doubled, with a text that is not UTF-8, or very deep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st

_UNFIT = b"\x0a\x03\xed\xa0\xbd"
"""Field 1, half of a surrogate pair."""
_DEEP = b"\x0a\x7f" * 200
_LONG_VARINT = b"\x08" + b"\xff" * 11
_GROUP = b"\x0b" * 150


@st.composite
def damaged(draw: Callable[[st.SearchStrategy[Any]], Any], made: st.SearchStrategy[Message]) -> bytes:
    """One of them, damaged in one to three places."""
    raw: bytes = draw(made).SerializeToString()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(["cut", "change", "insert", "repeat", "unfit", "deep", "varint", "group"])):
            case "cut":
                raw = raw[:at]
            case "change":
                raw = raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
            case "insert":
                raw = raw[:at] + draw(st.binary(min_size=1, max_size=8)) + raw[at:]
            case "repeat":
                raw += raw[at:]
            case "unfit":
                raw += _UNFIT
            case "deep":
                raw += _DEEP
            case "varint":
                raw += _LONG_VARINT
            case "group":
                raw += _GROUP
    return raw
