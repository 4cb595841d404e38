"""Live text comes once and in order, however a stream breaks and also after a takeover."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenure.sdk.events import LiveTextEvent
from tenure.sdk.live_text import LiveTextFilter
from tenure.v1 import ledger_pb2, live_pb2


def delta(text: str, offset: int, *, epoch: int = 1, step: int = 1, attempt: int = 1, block: int = 0) -> live_pb2.Delta:
    return live_pb2.Delta(epoch=epoch, step=step, attempt_number=attempt, block=block, offset=offset, text=text)


def passed(deltas: list[live_pb2.Delta], text_filter: LiveTextFilter | None = None) -> list[LiveTextEvent]:
    text_filter = text_filter or LiveTextFilter()
    return [event for each in deltas if (event := text_filter.event(each)) is not None]


@given(st.text(min_size=1, max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=12))
def test_repeated_text_is_passed_on_once(text: str, pieces: list[tuple[int, int]]) -> None:
    """A resumed stream sends any part of the text again, from any position that it has sent before."""
    sent, deltas = 0, []
    for start, length in pieces:
        begin = min(start, sent)
        deltas.append(delta(text[begin : begin + length], begin))
        sent = max(sent, min(len(text), begin + length))
    assert "".join(event.text for event in passed(deltas)) == text[:sent]


def test_a_gap_of_a_slow_reader_is_marked() -> None:
    events = passed([delta("ab", 0), delta("ef", 4)])
    assert [(event.text, event.offset, event.skipped) for event in events] == [("ab", 0, False), ("ef", 4, True)]


def test_the_text_of_a_takeover_replaces_the_unfinished_one() -> None:
    repeated = [delta("x", 0, epoch=2, attempt=2), delta("cd", 2), delta("y", 1, epoch=2, attempt=2)]
    events = passed([delta("ab", 0), *repeated])
    assert [(event.text, event.replaces) for event in events] == [("ab", False), ("x", True), ("y", False)]


def test_the_text_of_a_joined_call_goes_on_without_a_gap() -> None:
    """The next owner sends the text so far; the fenced one, which still reads the call, is not listened to."""
    events = passed([delta("ab", 0), delta("abc", 0, epoch=2), delta("cd", 2), delta("d", 3, epoch=2)])
    assert [(event.text, event.offset, event.replaces) for event in events] == [
        ("ab", 0, False),
        ("c", 2, False),
        ("d", 3, False),
    ]


def test_text_after_its_recorded_answer_is_dropped() -> None:
    text_filter = LiveTextFilter()
    assert len(passed([delta("ab", 0)], text_filter)) == 1
    answer = ledger_pb2.AssistantMessage(attempt_number=1)
    text_filter.entry(ledger_pb2.Entry(epoch=1, step=1, body=ledger_pb2.EntryBody(assistant_message=answer)))
    assert passed([delta("c", 2)], text_filter) == []
    (event,) = passed([delta("next", 0, step=2)], text_filter)
    assert (event.text, event.replaces) == ("next", False)
