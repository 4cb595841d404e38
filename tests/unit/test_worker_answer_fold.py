"""The fold of stream events: blocks, usage, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.conversation import with_own_ids
from tenure.model_providers.stream import (
    CUT_OFF_CALL,
    MAX_CONTENT_BYTES,
    MAX_TOKENS,
    UNUSABLE,
    AnswerFold,
    MalformedAnswer,
)


def start(**usage: Any) -> Any:
    return {"type": "message_start", "message": {"model": "m", "usage": usage}}


def block(index: Any, **fields: Any) -> Any:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def delta(index: Any, kind: Any, **fields: Any) -> Any:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: Any) -> Any:
    return {"type": "content_block_stop", "index": index}


def end(stop_reason: Any, **usage: Any) -> Any:
    return {"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage}


STOP = {"type": "message_stop"}


def fold(*events: Any) -> Any:
    folded = AnswerFold()
    for event in events if events[0]["type"] == "message_start" else (start(), *events):
        folded.take(event)
    return folded


def call(index: int = 0, *pieces: Any, complete: bool = True) -> Any:
    opened = block(index, type="tool_use", id="t", name="mail", input={})
    deltas = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return [opened, *deltas, *([stop(index)] if complete else [])]


def test_thinking_keeps_its_signature() -> None:
    folded = fold(
        block(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="hm"),
        delta(0, "thinking_delta", thinking="m"),
        delta(0, "signature_delta", signature="sig"),
        stop(0),
    )
    assert folded.content() == ({"type": "thinking", "thinking": "hmm", "signature": "sig"},)


def test_citations_are_kept() -> None:
    folded = fold(
        block(0, type="text", text="", citations=None),
        delta(0, "text_delta", text="so"),
        delta(0, "citations_delta", citation={"type": "char_location", "cited_text": "so"}),
    )
    assert folded.content() == (
        {"type": "text", "text": "so", "citations": [{"type": "char_location", "cited_text": "so"}]},
    )


def test_a_call_without_arguments_has_an_empty_object() -> None:
    folded = fold(*call(), end("tool_use", output_tokens=3))
    assert folded.content()[0]["input"] == {}


def test_call_that_the_output_limit_cut_is_marked() -> None:
    folded = fold(*call(0, '{"to":', '"a"}'), *call(1, '{"to', complete=True), end("max_tokens", output_tokens=3))
    whole, cut = folded.content()
    assert whole["input"] == {"to": "a"}
    assert UNUSABLE not in whole
    assert (cut["input"], cut[UNUSABLE]) == ({}, CUT_OFF_CALL)
    [before_its_input] = fold(*call(), end("max_tokens", output_tokens=3)).content()
    assert before_its_input[UNUSABLE] == CUT_OFF_CALL


def test_empty_text_is_left_out() -> None:
    folded = fold(block(0, type="text", text=""), delta(0, "text_delta", text=" \n"), end("end_turn", output_tokens=1))
    assert folded.content() == ()


def test_counts_are_cumulative_and_the_absent_stay() -> None:
    folded = fold(
        start(input_tokens=10, output_tokens=1, cache_read_input_tokens=7, cache_creation_input_tokens=None),
        end("end_turn", output_tokens=5, input_tokens=None, cache_read_input_tokens=None),
    )
    usage = folded.usage()
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens) == (10, 5, 7)


def test_output_that_was_not_counted_yet_is_estimated() -> None:
    folded = fold(
        start(input_tokens=10, output_tokens=1), block(0, type="text", text=""), delta(0, "text_delta", text="x" * 40)
    )
    assert folded.usage().output_tokens == 10


def test_empty_answer_is_not_billed() -> None:
    assert AnswerFold().usage().total == 0


def text(index: int = 0, *pieces: Any) -> Any:
    deltas = [delta(index, "text_delta", text=piece) for piece in pieces]
    return [block(index, type="text", text=""), *deltas, stop(index)]


def test_events_after_the_end_are_ignored() -> None:
    folded = fold(
        start(input_tokens=3), *text(0, "done"), end("end_turn", output_tokens=1), STOP, start(), *text(0, "x")
    )
    assert folded.stopped
    assert folded.content() == ({"type": "text", "text": "done"},)


def test_surrogate_halves_are_joined_or_replaced() -> None:
    folded = fold(*text(0, "a\ud83d", "\ude00b\ud83d"), end("end_turn", output_tokens=1))
    assert folded.content() == ({"type": "text", "text": "a\U0001f600b\ufffd"},)


def test_a_lone_half_in_arguments_is_replaced() -> None:
    folded = fold(*call(0, '{"q\\ud83d":["\\ude00 ok", "\\ud83d\\ude00"]}'), end("tool_use", output_tokens=1))
    assert folded.content()[0]["input"] == {"q\ufffd": ["\ufffd ok", "\U0001f600"]}


def test_unknown_events_and_members_are_ignored() -> None:
    folded = fold(
        start(), {"type": "message_news"}, block(0, type="text", text="a", colour="red"), stop(0), end("end_turn"), STOP
    )
    assert folded.content() == ({"type": "text", "text": "a"},)


def test_a_thought_that_was_cut_off_is_left_out() -> None:
    thought = [block(0, type="thinking", thinking="", signature=""), delta(0, "thinking_delta", thinking="hm")]
    assert fold(*thought, end("max_tokens", output_tokens=1), STOP).content() == ()


DEEP = '{"a":' * 100 + "1" + "}" * 100


@pytest.mark.parametrize(
    "arguments",
    ['{"to', '{"a":NaN}', '{"a":-Infinity}', '{"a":1e999}', '{"a":1,"a":2}', "[1]", '"a"', "null", DEEP, "[" * 100_000,
     '{"\\ud83d":1,"\\ude00":2}', '{"a":' + "1" * 5000 + "}", '{"a":1} {"b":2}'],
    ids=range(13),
)  # fmt: skip
def test_call_whose_arguments_could_not_be_sent_back_is_marked(arguments: Any) -> None:
    [marked] = fold(*call(0, arguments), end("tool_use", output_tokens=3)).content()
    assert marked["input"] == {}
    assert "cannot be read as a JSON object" in marked[UNUSABLE]
    assert len(marked[UNUSABLE]) < 1000


@pytest.mark.parametrize(
    "events",
    [
        [start(), start()],
        [{"type": "message_start", "message": {"model": ["m"]}}],
        [{"type": "message_start"}],
        [{"type": "message_start", "message": None}],
        [*text(1, "a")],
        [*text(0, "a"), *text(2, "b")],
        [*text(0, "a"), *text(0, "b")],
        [*text(0, "a"), delta(0, "text_delta", text="b")],
        [delta(0, "text_delta", text="b")],
        [stop(0)],
        [block(0, type="text", text=""), delta("0", "text_delta", text="b")],
        [block(0, type="text", text=""), delta(-1, "text_delta", text="b")],
        [block(0, type="text", text=""), delta(0, "text_delta", text=None)],
        [block(0, type="text", text=""), delta(0, "text_delta")],
        [block(0, type="text", text=""), delta(0, "input_json_delta", partial_json="{}")],
        [block(0, type="text", text=7)],
        [block(0, type="text", text="", citations="x")],
        [block(0, type="text", text="", citations=0)],
        [block(0, type=["text"], text="")],
        [block(0, text="")],
        [block(0, type="redacted_thinking")],
        [block(0, type="tool_use", id="t", name="no tool", input={})],
        [block(0, type="tool_use", id="t", name="", input={})],
        [block(0, type="tool_use", id=1, name="mail", input={})],
        [block(0, type="tool_use", id="t", input={})],
        [block(0, type="tool_use", id="t", name="mail", input=[1])],
        [block(0, type="text", text=""), STOP],
        [block(0, type="text", text=""), end("end_turn"), STOP],
        [block(0, type="text", text=""), *[delta(0, "text_delta", text="x" * MAX_CONTENT_BYTES)] * 2],
    ],
    ids=range(29),
)  # fmt: skip
def test_a_protocol_error_is_malformed_with_billable_usage(
    events: Any,
) -> None:
    folded = AnswerFold()
    begun = events[0]["type"] == "message_start"
    with pytest.raises(MalformedAnswer) as malformed:  # noqa: PT012  any of them may be the one
        for event in events if begun else (start(input_tokens=3), *events):
            folded.take(event)
    assert 0 <= folded.usage().total <= 2 * MAX_CONTENT_BYTES
    assert len(str(malformed.value)) < 1000


@pytest.mark.parametrize("count", [-1, MAX_TOKENS + 1, 1.5, True, "3", [1]])
def test_count_that_cannot_be_read_is_estimated(count: Any) -> None:
    folded = fold(start(input_tokens=count), *text(0, "abcd"), end("end_turn", output_tokens=count), STOP)
    assert not folded.is_usage_stated()
    assert (folded.usage().input_tokens, folded.usage().output_tokens) == (0, 1)
    assert fold(start(input_tokens=7.0)).usage().input_tokens == 7


def test_usage_beside_an_unknown_stop_reason_is_billed() -> None:
    folded = fold(start(input_tokens=9), *text(0, "a"), end("because", output_tokens=20_000), STOP)
    assert (folded.usage().output_tokens, folded.is_usage_stated()) == (20_000, True)
    assert folded.stop_reason_of(folded.content()) == "because"


@pytest.mark.parametrize("stop_reason", ["tool_use", "pause_turn", None, ["end_turn"], ""])
def test_stop_reason_without_meaning_ends_the_answer(stop_reason: Any) -> None:
    folded = fold(*text(0, "a"), end(stop_reason, output_tokens=1), STOP)
    assert folded.stop_reason_of(folded.content()) == "end_turn"


def test_unknown_blocks_and_deltas_are_left_out() -> None:
    poem = [
        block(0, type="poem", text=""),
        delta(0, "text_delta", text="la"),
        delta(0, "song_delta", song="la"),
        stop(0),
    ]
    folded = fold(*poem, *text(1, "a"), end("end_turn", output_tokens=1), STOP)
    assert folded.content() == ({"type": "text", "text": "a"},)


def test_calls_get_unique_ids_within_a_conversation() -> None:
    uses: list[dict[str, Any]] = [
        {"type": "tool_use", "id": one, "name": "mail", "input": {}} for one in ("a", "a", "", "b c", "new", "x" * 500)
    ]
    before: list[dict[str, Any]] = [
        {"role": "user", "content": "a goal"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": one} for one in ("a", "call_7_3")]},
    ]
    words: dict[str, Any] = {"type": "text", "text": "hi"}
    renamed = with_own_ids([words, *uses], before, 7)
    assert [one.get("id") for one in renamed] == [
        None, "call_7_1", "call_7_2", "call_7_3_", "call_7_4", "new", "call_7_6",
    ]  # fmt: skip
    assert [one["id"] for one in uses][:2] == ["a", "a"]
