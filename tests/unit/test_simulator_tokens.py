"""What the simulator bills, by rules that anyone can recompute."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.simulator.delivery import compose, stream_events
from devstack.simulator.scenario import ToolCall, Turn
from devstack.simulator.tokens import InputTokens, PromptCache, count_request

MARK = {"cache_control": {"type": "ephemeral"}}


def text(words: Any, **more: Any) -> Any:
    return {"type": "text", "text": words, **more}


def request(*messages: Any, **fields: Any) -> Any:
    return {"model": "m", "max_tokens": 1000, "messages": list(messages), **fields}


def test_four_bytes_of_text_are_a_token() -> None:
    body = request({"role": "user", "content": "12345"}, {"role": "user", "content": [text("äää")]}, system="1234")
    assert count_request(body) == 2 + 2 + 1


def small_cache(now: Any = lambda: 0.0) -> Any:
    """Keeps prefixes of any length, so that sums can be read."""
    return PromptCache(least_tokens=0, now=now)


def test_a_prefix_is_created_once_and_read_afterwards() -> None:
    cache = small_cache()
    system = [text("x" * 400, **MARK)]
    first = request({"role": "user", "content": "a" * 40}, system=system)
    second = request({"role": "user", "content": "b" * 80}, system=system)
    assert cache.price(first) == InputTokens(10, cache_creation=100)
    assert cache.price(second) == InputTokens(20, cache_read=100)


def test_a_prefix_is_forgotten_five_minutes_after_its_last_use() -> None:
    clock = [0.0]
    cache = small_cache(lambda: clock[0])
    body = request({"role": "user", "content": [text("a" * 400, **MARK)]})
    reads = []
    for clock[0] in (0.0, 299.0, 597.0, 898.0):
        reads.append(cache.price(body).cache_read)
    assert reads == [0, 100, 100, 0]


def test_a_prefix_that_is_too_short_is_not_kept() -> None:
    cache = PromptCache()
    body = request({"role": "user", "content": [text("a" * 4092, **MARK), text("b" * 4, **MARK)]})
    assert cache.price(body) == InputTokens(0, cache_creation=1024)
    assert cache.price(request({"role": "user", "content": [text("a" * 4092, **MARK)]})) == InputTokens(1023)


def test_only_marked_prefixes_are_cached() -> None:
    cache = small_cache()
    cache.price(request({"role": "user", "content": [text("a" * 400), text("b" * 400, **MARK)]}))
    again = request({"role": "user", "content": [text("a" * 400, **MARK), text("c" * 400)]})
    assert cache.price(again) == InputTokens(100, cache_creation=100)


@pytest.mark.parametrize(("between", "read"), [(19, 100), (20, 0)])
def test_a_prefix_is_looked_for_twenty_parts_before_a_mark(between: int, read: int) -> None:
    cache = small_cache()
    cache.price(request({"role": "user", "content": [text("a" * 400, **MARK)]}))
    new = [text("b" * 4) for _ in range(between)]
    again = request({"role": "user", "content": [text("a" * 400), *new, text("c", **MARK)]})
    assert cache.price(again).cache_read == read


def test_growing_conversation_reads_its_prefix() -> None:
    cache = small_cache()
    turns = [{"role": "user", "content": [text(f"{index}" * 400)]} for index in range(3)]
    seen = 0
    for count in (1, 2, 3):
        last = {"role": "user", "content": [{**turns[count - 1]["content"][0], **MARK}]}
        price = cache.price(request(*turns[: count - 1], last))
        assert price == InputTokens(0, cache_creation=100, cache_read=seen)
        seen += 100


def test_the_requests_own_mark_covers_all_of_it() -> None:
    assert small_cache().price(request({"role": "user", "content": "a" * 40}, **MARK)) == InputTokens(
        0, cache_creation=10
    )


def test_another_model_shares_no_prefix() -> None:
    cache = small_cache()
    body = request({"role": "user", "content": [text("a" * 40, **MARK)]})
    cache.price(body)
    assert cache.price({**body, "model": "other"}).cache_read == 0


@given(st.lists(st.tuples(st.text(min_size=1, max_size=30), st.booleans()), min_size=1, max_size=8))
def test_caching_never_changes_the_sum(parts: list[Any]) -> None:
    body = request({"role": "user", "content": [text(words, **(MARK if marked else {})) for words, marked in parts]})
    cache = small_cache()
    assert cache.price(body).total == cache.price(body).total == count_request(body)


@given(st.text(min_size=1, max_size=300), st.integers(0, 30))
def test_an_answer_never_exceeds_max_tokens(words: str, max_tokens: int) -> None:
    turn = Turn(text="{{goal}}", calls=(ToolCall("write_file", {"path": "a", "content": "b" * 100}),))
    reply = compose(turn, {**request({"role": "user", "content": words}), "max_tokens": max_tokens})
    assert reply.output_tokens <= max_tokens
    assert reply.stop_reason == "max_tokens"
    assert reply.size_bytes <= 4 * max_tokens
    assert all(isinstance(block.value()["input"], dict) for block in reply.blocks if block.tool_name)


def test_a_scenarios_own_output_tokens_are_cut_in_proportion() -> None:
    reply = compose(
        Turn(text="x" * 100, output_tokens=1000), {**request({"role": "user", "content": "a"}), "max_tokens": 500}
    )
    assert (len(reply.blocks[0].text), reply.output_tokens, reply.stop_reason) == (50, 500, "max_tokens")


@given(st.text(min_size=1, max_size=500), st.integers(1, 50))
def test_deltas_add_up_to_the_answer(words: str, deltas: int) -> None:
    turn = Turn(text="{{goal}}", calls=(ToolCall("f", {"a": "{{goal}}"}),))
    reply = compose(turn, {**request({"role": "user", "content": words}), "max_tokens": 10_000})
    events = list(stream_events(reply, InputTokens(1), deltas))
    values = [json.loads(event.data.decode().split("data: ", 1)[1]) for event in events]
    pieces = ["", ""]
    for value in values:
        if value["type"] == "content_block_delta":
            pieces[value["index"]] += value["delta"].get("text", "") + value["delta"].get("partial_json", "")
    assert pieces[0] == words
    assert json.loads(pieces[1]) == {"a": words}
    assert sum(event.produced_bytes for event in events) == reply.size_bytes
    assert values[-2]["usage"]["output_tokens"] == reply.tokens_after(reply.size_bytes) == reply.output_tokens


@pytest.mark.parametrize("share", [0, 1, 50, 99])
def test_a_part_of_an_answer_costs_its_share(share: int) -> None:
    reply = compose(Turn(text="x" * 100), request({"role": "user", "content": "a"}))
    assert reply.tokens_after(share) == max(1, -(-share // 4))
