"""JSON from strangers, and texts that every message can carry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.tool_arguments import (
    MAX_JSON_DEPTH,
    depth_of,
    escaped,
    is_deeper,
    storable_json,
    strict_json,
    well_formed,
    well_formed_value,
)

ANY_TEXT = st.text(st.characters(), max_size=20) | st.text(st.characters(categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e999", "-1e999", "", "{", "1 2", "9" * 5000])
def test_invalid_json_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json(text)


def nested(depth: int) -> str:
    return '{"a":' * (depth - 1) + "[]" + "}" * (depth - 1)


@pytest.mark.parametrize("text", [nested(MAX_JSON_DEPTH + 1), "[" * 100_000, '"\\ud83d"', '{"\\uD83D": 1}', "NaN"])
def test_json_outside_of_the_common_subset_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        storable_json(text)


def test_deep_json_and_whole_pairs_are_kept() -> None:
    assert depth_of(storable_json(nested(MAX_JSON_DEPTH))) == MAX_JSON_DEPTH
    assert storable_json('["[[[[", "\\ud83d\\ude00"]') == ["[[[[", "\U0001f600"]


def test_a_name_may_come_twice_only_where_that_is_allowed() -> None:
    assert strict_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="twice"):
        strict_json('[{"a": {"b": 1, "b": 1}}]', unique_names=True)


@given(VALUES)
def test_a_well_formed_value_can_be_written_and_read(value: Any) -> None:
    try:
        made = well_formed_value(value)
    except ValueError as error:
        assert "twice" in str(error)  # noqa: PT017  two names that differed in their halves only
        return
    text = json.dumps(made, ensure_ascii=False, allow_nan=False)
    assert strict_json(text.encode().decode(), unique_names=True) == made


@given(ANY_TEXT)
def test_a_well_formed_text_is_kept(text: Any) -> None:
    made = well_formed(text)
    made.encode()
    assert well_formed(made) == made
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert made == text


def test_pairs_are_joined_and_lone_halves_replaced() -> None:
    assert well_formed("\ud83d\ude00|\ud83d|\ude00|\ude00\ud83d") == "\U0001f600|\ufffd|\ufffd|\ufffd\ufffd"


@given(ANY_TEXT, st.integers(0, 30))
def test_an_escaped_text_can_be_shown_and_is_bounded(text: Any, most: int) -> None:
    shown = escaped(text, most)
    shown.encode()
    assert all(one.isprintable() or one == "\n" for one in shown)
    assert len(shown) <= 10 * most + 2


def test_depth_counts_every_level() -> None:
    values: tuple[object, ...] = (1, [], [1], {"a": [{}]})
    assert [depth_of(one) for one in values] == [1, 1, 2, 3]


def test_is_deeper_agrees_with_the_depth() -> None:
    texts = ("1", "[]", "[[1]]", '["[[[["]', "[[], [], []]", '{"a": [{}]}', "[[[]]]", "[[[1]]]")
    for text in texts:
        value = strict_json(text)
        assert [is_deeper(text, value, most) for most in range(1, 6)] == [
            depth_of(value) > most for most in range(1, 6)
        ]
