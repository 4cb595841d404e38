"""JSON pointers, and mappings of one call's arguments and outcome to another call's arguments."""

from __future__ import annotations

import pytest

from tenure.domain.argument_mapping import mapped_arguments, parsed, problems_of_mapping
from tenure.domain.json_pointers import JsonValue, value_at

RFC: JsonValue = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "m~n": 8, " ": 7}
"""The document of RFC 6901, section 5."""


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/m~0n", 8),
        ("/ ", 7),
    ],
)
def test_pointers_of_the_standard_find_their_values(pointer: str, value: JsonValue) -> None:
    assert value_at(RFC, pointer) == value


@pytest.mark.parametrize(
    "pointer", ["foo", "/bar", "/foo/2", "/foo/-", "/foo/01", "/foo/-1", "/foo/x", "/a~1b/c", "/foo/0/0"]
)
def test_pointer_without_a_value_is_an_error(pointer: str) -> None:
    with pytest.raises(LookupError):
        value_at(RFC, pointer)


def test_mapping_takes_pointers_and_values() -> None:
    mapping: dict[str, JsonValue] = {
        "id": "/outcome/id",
        "cents": "/arguments/cents",
        "why": "undo",
        "n": 3,
        "path": {"literal": "/etc"},
    }
    document: dict[str, JsonValue] = {"arguments": {"cents": 7}, "outcome": parsed('{"id": "p1"}')}
    assert mapped_arguments(mapping, document) == {"id": "p1", "cents": 7, "why": "undo", "n": 3, "path": "/etc"}


def test_outcome_without_json_counts_as_a_text() -> None:
    assert mapped_arguments({"id": "/outcome"}, {"outcome": parsed("payment 7")}) == {"id": "payment 7"}
    with pytest.raises(LookupError, match="the argument id: there is no value at /outcome/id"):
        mapped_arguments({"id": "/outcome/id"}, {"outcome": parsed("payment 7")})


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ({"id": "/outcomes/id"}, "must begin with /arguments or /outcome"),
        ({"id": "/key"}, "must begin with /arguments or /outcome"),
        ({"id": "x" * 20_000}, "may have 16384"),
        ({"id": {1, 2}}, "must be JSON"),
    ],
)
def test_mapping_that_cannot_be_used_is_a_problem(mapping: dict[str, JsonValue], problem: str) -> None:
    assert problem in "; ".join(problems_of_mapping(mapping, ("arguments", "outcome")))
    assert not list(problems_of_mapping({"id": "/outcome", "why": "a/b", "x": {"literal": "/y"}}))
