"""The specification: it speaks of code that is there, and what it says was checked still holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from spec import check, matrix

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"

_PLACE = re.compile(r"((?:tenure|services)/[\w/]+\.(?:py|sql))((?: \w+(?:\.\w+)?)*)")


def named_paths() -> list[tuple[str, str]]:
    """Every `code:` of the models: a file, and a name in it or none."""
    results = []
    for model in sorted(SPEC.glob("*.pml")):
        for said in re.findall(r"code: ([^\n]*)", model.read_text()):
            for path, names in _PLACE.findall(said):
                results += [(path, name) for name in names.split() or [""]]
    return results


@pytest.mark.parametrize(("path", "name"), sorted(set(named_paths())))
def test_a_model_points_to_code_that_is_there(path: Any, name: Any) -> None:
    text = (ROOT / path).read_text()
    *owners, last = name.split(".")
    for owner in owners:
        assert re.search(rf"^class {owner}\b", text, re.MULTILINE), f"{path} has no class {owner}"
    if name and path.endswith(".sql"):
        assert f"-- name: {last}" in text
    elif name:
        assert re.search(rf"(def|class) {last}\b", text), f"{path} has no {last}"


def test_every_mutation_of_a_model_is_in_the_matrix() -> None:
    checked = {flag for each in (*matrix.SMALL, *matrix.LARGE) for flag in each.flags.split()}
    used = {
        flag
        for model in SPEC.glob("*.pml")
        for flag in re.findall(r"#if(?:n?def|.*defined\()? ?\(?(M_\w+)", model.read_text())
    }
    assert used
    assert used <= checked


IN_EACH_RUN = {"effects_keyed", "stops_worker_lost", "stops_m_try_view"}
"""These take two seconds each, most of it for compilation. `make faults` runs all."""
SEARCHES = [
    pytest.param(each, id=each.name, marks=() if each.name in IN_EACH_RUN else pytest.mark.faults)
    for each in matrix.SMALL
]


@pytest.mark.skipif(bool(check.advice()), reason=check.advice() or "spin and gcc are there")
@pytest.mark.parametrize("configuration", SEARCHES)
def test_the_protocol_holds_and_each_guard_is_needed(configuration: Any) -> None:
    verdict = check.check(configuration)
    assert verdict.is_expected, f"{verdict.got}, after {verdict.states} states\n{verdict.trace}"
