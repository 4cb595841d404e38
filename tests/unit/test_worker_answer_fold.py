"""The fold of stream events: blocks, usage, and what is left out."""

from __future__ import annotations

from types import SimpleNamespace as Event

import pytest

from services.worker.answer_fold import AnswerFold, MalformedAnswer


class Block:
    def __init__(self, **fields):
        self.fields = fields

    def to_dict(self, mode):
        assert mode == "json"
        return dict(self.fields)


def start(**usage):
    return Event(type="message_start", message=Event(model="m", usage=Event(**usage)))


def block(index, **fields):
    return Event(type="content_block_start", index=index, content_block=Block(**fields))


def delta(index, kind, **fields):
    return Event(type="content_block_delta", index=index, delta=Event(type=kind, **fields))


def stop(index):
    return Event(type="content_block_stop", index=index)


def end(stop_reason, **usage):
    return Event(type="message_delta", delta=Event(stop_reason=stop_reason), usage=Event(**usage))


def fold(*events):
    folded = AnswerFold()
    for event in events:
        folded.take(event)
    return folded


def call(index=0, *pieces, complete=True):
    opened = block(index, type="tool_use", id="t", name="mail", input={})
    deltas = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return [opened, *deltas, *([stop(index)] if complete else [])]


def test_thinking_keeps_its_signature():
    folded = fold(
        block(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="hm"),
        delta(0, "thinking_delta", thinking="m"),
        delta(0, "signature_delta", signature="sig"),
        stop(0),
    )
    assert folded.content() == ({"type": "thinking", "thinking": "hmm", "signature": "sig"},)


def test_citations_are_kept():
    folded = fold(
        block(0, type="text", text="", citations=None),
        delta(0, "text_delta", text="so"),
        delta(0, "citations_delta", citation=Block(type="char_location", cited_text="so")),
    )
    assert folded.content() == (
        {"type": "text", "text": "so", "citations": [{"type": "char_location", "cited_text": "so"}]},
    )


def test_a_call_without_arguments_has_an_empty_object():
    folded = fold(*call(), end("tool_use", output_tokens=3))
    assert folded.content()[0]["input"] == {}


def test_a_call_that_ended_before_the_limit_is_kept():
    folded = fold(*call(0, '{"to":', '"a"}'), *call(1, '{"to', complete=True), end("max_tokens", output_tokens=3))
    assert [one["input"] for one in folded.content()] == [{"to": "a"}]


def test_a_call_of_which_nothing_came_before_the_limit_is_left_out():
    assert fold(*call(), end("max_tokens", output_tokens=3)).content() == ()


def test_arguments_that_are_no_json_are_a_malformed_answer():
    with pytest.raises(MalformedAnswer):
        fold(*call(0, '{"to'), end("tool_use", output_tokens=3)).content()


def test_empty_text_is_left_out():
    folded = fold(block(0, type="text", text=""), delta(0, "text_delta", text=" \n"), end("end_turn", output_tokens=1))
    assert folded.content() == ()


def test_counts_are_cumulative_and_the_absent_stay():
    folded = fold(
        start(input_tokens=10, output_tokens=1, cache_read_input_tokens=7, cache_creation_input_tokens=None),
        end("end_turn", output_tokens=5, input_tokens=None, cache_read_input_tokens=None),
    )
    usage = folded.usage()
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (10, 5, 7)


def test_output_that_was_not_counted_yet_is_estimated():
    folded = fold(
        start(input_tokens=10, output_tokens=1), block(0, type="text", text=""), delta(0, "text_delta", text="x" * 40)
    )
    assert folded.usage().output_tokens == 10


def test_nothing_said_is_nothing_billed():
    assert AnswerFold().usage().total == 0
