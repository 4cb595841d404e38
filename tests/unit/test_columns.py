"""A class of rows gives the columns of its statements, and the arrays that fill them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import uuid4

import pytest

from services.checkpoint.columns import (
    STEP,
    Added,
    Jsonb,
    RowArrays,
    Stepped,
    Unlisted,
    Uuid,
    select_list,
)
from tenure.runtime.store.sql_arrays import Uuids, UuidTexts


@dataclass
class Usage:
    tokens: int


class Row(NamedTuple):
    key: Uuid
    parent: Uuid | None
    name: str
    uses: Stepped[int]
    open: Stepped[bool]
    calls: Stepped[tuple[str, ...]]
    ends_at: Stepped[datetime | None]
    labels: Jsonb
    extra: Unlisted[Stepped[Added[int]]]


class Bill(NamedTuple):
    model: str
    lost: bool
    usage: Usage


def test_select_lists_the_columns_in_order() -> None:
    expected = "t.key::text, t.parent::text, t.name, t.uses, t.open, t.calls, t.ends_at, t.labels::text"
    assert select_list(Row, "t") == expected


def test_column_after_unlisted_field_is_refused() -> None:
    class Swapped(NamedTuple):
        now: Unlisted[int]
        name: str

    with pytest.raises(ValueError, match="Swapped: a listed column comes after an unlisted field"):
        select_list(Swapped, "t")


def test_insert_writes_absent_values_as_null() -> None:
    class New(NamedTuple):
        key: Uuid
        parent: Uuid | None
        tools: tuple[str, ...] | None
        depth: int
        spawned: int

    arrays = RowArrays("new", New)
    assert arrays.parts["new.columns"] == "key, parent, tools, depth, spawned"
    assert arrays.parts["new.values"] == "c.key, c.parent, string_to_array(c.tools, e'\\x1f'), n[i][1], n[i][2]"
    parameters = arrays.of([New("a", None, None, 0, 0), New("b", "a", (), 1, 2), New("c", "a", ("x", "y"), 1, 3)])
    assert parameters == {
        "key": ["a", "b", "c"],
        "parent": [None, "a", "a"],
        "tools": [None, "", "x\x1fy"],
        "numbers": [(0, 0), (1, 2), (1, 3)],
    }


def test_update_sets_each_column() -> None:
    arrays = RowArrays("steps", Row, mark=STEP, key="key")
    assert arrays.parts["steps.set"] == (
        "uses = n[i][1], open = n[i][2] = 1, calls = string_to_array(c.calls, e'\\x1f'), "
        "ends_at = nullif(c.ends_at, '')::timestamptz, extra = extra + n[i][3]"
    )
    assert arrays.parts["steps.names"] == "key, calls, ends_at"
    assert arrays.parts["steps.arrays"] == "%(key)b::uuid[], %(calls)b::text[], %(ends_at)b::text[]"
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        Row("a", None, "", 5, True, ("1.0", "1.1"), moment, "{}", 7),
        Row("b", None, "", 6, False, (), None, "{}", 8),
    ]
    assert arrays.of(rows) == {
        "key": ["a", "b"],
        "calls": ["1.0\x1f1.1", ""],
        "ends_at": [moment.isoformat(), ""],
        "numbers": [(5, True, 7), (6, False, 8)],
    }


def test_insert_reads_nested_values() -> None:
    arrays = RowArrays("bills", Bill, prefix="bill_")
    assert (arrays.parts["bills.columns"], arrays.parts["bills.values"]) == (
        "model, lost, tokens",
        "c.model, n[i][1] = 1, n[i][2]",
    )
    assert arrays.of([Bill("m", True, Usage(3))]) == {"bill_model": ["m"], "bill_numbers": [(True, 3)]}


def test_ids_as_texts_are_packed_as_uuids() -> None:
    """As the values themselves, with the absent ones as nulls: the database then parses no text."""
    first, second = uuid4(), uuid4()
    assert UuidTexts([str(first), str(second).upper()]).packed() == Uuids([first, second]).packed()
    assert UuidTexts([]).packed() == Uuids([]).packed()
    absent = UuidTexts([str(first), None]).packed()
    assert absent[20:] == b"\x00\x00\x00\x10" + first.bytes + b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="non-hexadecimal"):
        UuidTexts([str(first), "not an id"]).packed()
