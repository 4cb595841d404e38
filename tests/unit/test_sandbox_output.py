"""What is kept of a program's output."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from services.tools.sandbox.result import KeptOutput

portions = st.lists(st.binary(max_size=40), max_size=20)


@given(portions, st.integers(1, 200))
def test_portions_make_no_difference(parts: list[bytes], limit: int) -> None:
    in_parts, at_once = KeptOutput(limit), KeptOutput(limit)
    for part in parts:
        in_parts.feed(part)
    at_once.feed(b"".join(parts))
    assert in_parts.text() == at_once.text()
    assert in_parts.truncated == at_once.truncated


@given(portions, st.integers(1, 200))
def test_only_marked_output_is_cut(parts: list[bytes], limit: int) -> None:
    kept = KeptOutput(limit)
    for part in parts:
        kept.feed(part)
    whole = b"".join(parts)
    assert kept.truncated == (len(whole) > limit)
    if not kept.truncated:
        assert kept.text() == whole.decode(errors="replace")


@given(st.text(max_size=400), st.integers(4, 100))
def test_a_cut_never_breaks_a_character(text: str, limit: int) -> None:
    printed = "".join(c for c in text if c != "�" and not 0xD800 <= ord(c) < 0xE000)
    kept = KeptOutput(limit)
    kept.feed(printed.encode())
    assert "�" not in kept.text()


def test_the_beginning_and_the_end_are_kept() -> None:
    kept = KeptOutput(100)
    kept.feed(b"start " + b"." * 10_000)
    kept.feed(b" end")
    assert kept.truncated
    assert kept.text().startswith("start ...")
    assert kept.text().endswith("... end")
    assert "9910 bytes left out" in kept.text()


def test_memory_stays_bounded_however_small_the_portions() -> None:
    kept = KeptOutput(64)
    tracemalloc.start()
    for _ in range(10_000):
        kept.feed(b"x" * 100)
    kept_bytes, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 10_000


def test_live_text_joins_a_character_split_between_portions() -> None:
    kept = KeptOutput(100)
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    assert kept.feed(first) == ""
    assert kept.feed(second) == "ü"


def test_nul_and_invalid_bytes_are_text_too() -> None:
    kept = KeptOutput(100)
    assert kept.feed(b"a\0b\xff") == "a\0b�"
    assert kept.text() == "a\0b�"
