"""The baseline of ratios, and the sentences about what regressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import check
from bench.baseline import FILE, BaselineError, problems, ratios, read, write
from bench.figures import Section
from bench.machine import Machine

MACHINE = Machine(cores=2, system="Linux", python="3.11.7", postgres="18.6", etcd="3.5.1", sync_ms=0.1, load=0.25)
BASELINE = {"Commits: share of bare": 80.0, "Commits: against the floor": 5.0}


def section_of(share: float, times: float) -> Section:
    section = Section("Commits", "As fast as they go.")
    section.add_rounds("rate", [1.0, 2.0, 3.0], "/s")
    section.add_rounds("share of bare", [share - 1, share, share + 1], "%", is_compared=True)
    section.add_rounds("against the floor", [times], "times", is_compared=True)
    return section


def measured(share: float, times: float) -> Any:
    return ratios([section_of(share, times)])


@pytest.mark.parametrize(("share", "times"), [(80, 5), (68.1, 5.74), (99, 1)])
def test_small_changes_and_gains_are_no_regression(share: float, times: float) -> None:
    assert problems(measured(share, times), BASELINE) == []


def test_a_share_that_fell_is_reported_with_its_figures() -> None:
    (sentence,) = problems(measured(67.9, 5), BASELINE)
    for part in ("share of bare", "'Commits'", "at least 68.00 %", "80.00", "measured 67.90", "--accept"):
        assert part in sentence


def test_times_that_grew_are_reported_with_their_figures() -> None:
    (sentence,) = problems(measured(80, 5.76), BASELINE)
    for part in ("against the floor", "at most 5.75 times", "measured 5.76", "--accept"):
        assert part in sentence


def test_a_ratio_on_one_side_only_is_reported() -> None:
    unknown, missing = problems(measured(80, 5)[:1], {"Commits: gone": 1.0})
    assert "does not have this ratio" in unknown
    assert "did not measure it" in missing


def test_the_exit_code_says_whether_a_ratio_regressed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check([section_of(80, 5)], BASELINE) == 0
    assert "All 2 ratios of the baseline hold" in capsys.readouterr().out
    assert check([section_of(67.9, 5)], BASELINE) == 1
    assert "share of bare regressed" in capsys.readouterr().err


def test_a_written_baseline_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write(measured(80, 5), MACHINE, path)
    assert read(path) == BASELINE
    assert "2 cores" in path.read_text()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"ratios": {"a": null}}', '{"ratios": 1}'])
def test_a_broken_baseline_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(BaselineError, match="--accept"):
        read(path)


def test_a_missing_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="--accept"):
        read(tmp_path / "baseline.json")


def test_the_committed_baseline_can_be_read() -> None:
    assert read(FILE)
