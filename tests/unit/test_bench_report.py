"""What a stranger reads of the measurements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.figures import Figure, Section, at_most, over
from bench.machine import Machine
from bench.report import as_json, number, render, table, verdict

MACHINE = Machine(cores=2, system="Linux", python="3.11.7", postgres="18.6", etcd="3.5.1", sync_ms=0.1, load=0.25)


@pytest.fixture
def section() -> Any:
    section = Section("Commits", "As fast as they go.")
    section.add_rounds("frames", [2000.0, 1000.0, 3000.0], "/s", bound=over(1666))
    section.add_latencies("kill", [0.5, 1.5], bound=at_most(1000))
    section.add("resume", 12.34, "ms", note="4,000 entries")
    return section


def test_a_figure_is_a_line_with_range_and_bound(section: Any) -> None:
    lines = render(MACHINE, [section], 12.3).splitlines()
    assert any(
        line.split() == ["frames", "2,000", "/s", "1,000", "to", "3,000", "over", "1,666", "/s", "holds"]
        for line in lines
    )
    assert any(
        "kill, p99" in line and "1,500 ms" in line and "at most 1,000 ms" in line and "MISSED" in line for line in lines
    )
    assert any("resume" in line and line.endswith("4,000 entries") for line in lines)


def test_the_report_names_the_machine_and_every_measurement(section: Any) -> None:
    text = render(MACHINE, [section], 12.3)
    assert "2 cores" in text
    assert "Postgres 18.6" in text
    assert "Commits" in text
    assert "Measured in 12 s." in text


def test_the_verdict_names_what_was_missed(section: Any) -> None:
    assert verdict([section]) == "1 of 2 bounds missed: kill, p99."
    section.figures = [figure for figure in section.figures if figure.holds is not False]
    assert verdict([section]) == "All bounds hold."
    assert verdict([]) == "Nothing measured here has a bound."


def test_a_reached_bound_holds_only_as_a_maximum() -> None:
    assert Figure("a", 10.0, "ms", bound=at_most(10)).holds
    assert not Figure("a", 10.0, "/s", bound=over(10)).holds
    assert Figure("a", 10.0, "ms").holds is None


def test_nothing_is_told_of_rounds_that_measured_nothing() -> None:
    section = Section("CPU", "Where the system tells it.")
    section.add_rounds("CPU of checkpoint", [], "µs a commit")
    assert section.figures == []


def test_programs_get_the_numbers_as_they_were_measured(section: Any) -> None:
    read = json.loads(json.dumps(as_json(MACHINE, [section], 12.3)))
    assert read["machine"]["cores"] == 2
    figures = {figure["what"]: figure for figure in read["sections"][0]["figures"]}
    assert figures["resume"]["value"] == 12.34
    assert figures["kill, p99"]["holds"] is False
    assert figures["frames"]["bound"] == {"limit": 1666, "is_most": False}


@pytest.mark.parametrize(
    ("value", "shown"), [(8713.4, "8,713"), (123.4, "123"), (45.67, "45.7"), (3.14159, "3.14"), (0.0, "0.00")]
)
def test_a_number_shows_what_the_measurement_can_carry(value: float, shown: str) -> None:
    assert number(value) == shown


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table([("what", "figure"), ("a", "1,000 ms"), ("longer", "2 ms")]) == [
        "what      figure",
        "a       1,000 ms",
        "longer      2 ms",
    ]
