"""The differences of pinned tools that operators read, also those of a server that wants to keep the service busy."""

from __future__ import annotations

import json
import time

from services.tools.pins import MAX_COMPARED_LINES, MAX_DIFFERENCE, difference_of


def definition(numbers: list[int]) -> str:
    return json.dumps({"input_schema": {"enum": numbers}}, indent=2)


def test_a_difference_far_down_has_the_lines_of_the_whole() -> None:
    numbers = list(range(2 * MAX_COMPARED_LINES))
    changed = [*numbers[:-10], -1, *numbers[-9:]]
    before, after = definition(numbers).splitlines(), definition(changed).splitlines()
    lines = difference_of("\n".join(before), "\n".join(after)).splitlines()
    first = next(number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other) - 1
    assert lines[2] == f"@@ -{first},5 +{first},5 @@"
    assert [line for line in lines[3:] if line[0] in "+-"] == [f"-      {numbers[-10]},", "+      -1,"]


def test_cut_difference_counts_the_rest() -> None:
    many = list(range(3 * MAX_COMPARED_LINES))
    begins_otherwise, ends = definition([-1, *many]), definition(many)
    difference = difference_of(ends, begins_otherwise)
    assert "+      -1," in difference.splitlines()
    assert difference.endswith("more lines, which are not compared")
    whole = difference_of(definition([]), ends)
    assert len(whole) <= MAX_DIFFERENCE
    assert "more characters\n… and up to" in whole
    assert difference_of(definition([]), definition(many[:1000])).endswith("more characters")


def test_a_server_cannot_make_a_comparison_take_minutes() -> None:
    """Each line occurs often, but too seldom to be left out by difflib: the whole comparison takes over a minute."""
    numbers = [i % 150 for i in range(25_000)]
    began = time.thread_time()
    difference_of(definition(numbers), definition([(7 * i) % 150 for i in range(25_000)]))
    assert time.thread_time() - began < 20
