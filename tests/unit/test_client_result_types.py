"""Typed results: the schema that the agent reads, and the value that the caller gets."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel

from tenure.domain.result_schema import problem_of_schema, validate_result
from tenure.sdk.result_type import result_type_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(TypedDict):
    name: Annotated[str, "the name in the shop"]
    tags: NotRequired[list[str]]


@dataclass(frozen=True)
class Offer:
    item: Item
    price: float
    count: int | None
    colour: Colour = Colour.RED
    by: Literal["mail", "phone"] = "mail"
    seen_at: datetime | None = None
    day: date = date(2026, 1, 1)
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Order:
    """Has parts that are not fields of its JSON: the class's own value, and a field that the constructor refuses."""

    currency: ClassVar[str] = "EUR"
    cents: list[int]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.cents)


@dataclass
class Seeded:
    cents: int
    seed: InitVar[int]


@dataclass
class Node:
    next: Node | None


FULL = (
    '{"item": {"name": "a", "tags": ["b"]}, "price": 3, "count": 2.0, "colour": "blue", "by": "phone",'
    ' "seen_at": "2026-11-23T07:00:00Z", "day": "2026-11-23", "more": {"x": [1]}}'
)


def test_schema_accepts_exactly_the_readable_values() -> None:
    kind = result_type_of(Offer)
    assert problem_of_schema(kind.schema_json) == ""
    assert '"description": "the name in the shop"' in kind.schema_json
    assert validate_result(kind.schema_json, FULL).violations == ()
    assert kind.read(FULL) == Offer(
        {"name": "a", "tags": ["b"]},
        3.0,
        2,
        Colour.BLUE,
        "phone",
        datetime(2026, 11, 23, 7, tzinfo=UTC),
        date(2026, 11, 23),
        {"x": [1]},
    )
    least = '{"item": {"name": "a"}, "price": 0.5, "count": null}'
    assert kind.read(least) == Offer({"name": "a"}, 0.5, None)


@pytest.mark.parametrize(
    "wrong",
    [
        '{"item": {"name": "a"}, "price": 1}',
        '{"item": {"name": 1}, "price": 1, "count": 1}',
        '{"item": {"name": "a"}, "price": "1", "count": 1}',
        '{"item": {"name": "a"}, "price": 1, "count": 1.5}',
        '{"item": {"name": "a"}, "price": true, "count": 1}',
        '{"item": {"name": "a"}, "price": 1, "count": 1, "colour": "green"}',
        '{"item": {"name": "a"}, "price": 1, "count": 1, "by": "fax"}',
        '{"item": {"name": "a"}, "price": 1, "count": 1, "unknown": 1}',
        '{"item": {"name": "a"}, "price": 1, "count": 1, "more": []}',
        "[]",
    ],
)
def test_schema_and_reader_refuse_the_same_values(wrong: str) -> None:
    kind = result_type_of(Offer)
    assert validate_result(kind.schema_json, wrong).violations
    with pytest.raises(ValueError):
        kind.read(wrong)


@pytest.mark.parametrize("unsupported", [set, set[int], list, dict[int, str], Node, object, 3])
def test_another_type_is_refused_before_the_submit(unsupported: Any) -> None:
    with pytest.raises(TypeError):
        result_type_of(unsupported)


def test_schema_has_the_arguments_of_the_constructor() -> None:
    kind = result_type_of(Order)
    assert validate_result(kind.schema_json, '{"cents": [1, 2]}').violations == ()
    assert validate_result(kind.schema_json, '{"cents": [1, 2], "total": 3}').violations != ()
    assert kind.read('{"cents": [1, 2]}') == Order([1, 2])
    with pytest.raises(TypeError, match=r"Seeded\.seed"):
        result_type_of(Seeded)


class Part(BaseModel):
    name: str
    parts: list[Part] = []


@dataclass
class Kit:
    part: Part
    spare: Part | None = None


def test_pydantic_models_may_be_inside_other_types() -> None:
    """In lists, unions and dataclasses, also models that contain themselves."""
    inner = '{"name": "screw", "parts": [{"name": "thread"}]}'
    part = Part(name="screw", parts=[Part(name="thread")])
    kinds: list[tuple[Any, str, Any]] = [
        (list[Part], f"[{inner}]", [part]),
        (Part | None, "null", None),
        (Kit, f'{{"part": {inner}}}', Kit(part)),
    ]
    for kind, text, value in kinds:
        result = result_type_of(kind)
        assert problem_of_schema(result.schema_json) == ""
        assert validate_result(result.schema_json, text).violations == ()
        assert result.read(text) == value
    with pytest.raises(ValueError, match="name"):
        result_type_of(list[Part]).read('[{"parts": []}]')
