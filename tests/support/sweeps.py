"""Sweeps over many cases of few kinds: `make test` runs one case of each kind, `make faults` the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def one_of_each(cases: Iterable[Any], kind: Callable[[Any], object] = lambda case: case[-1]) -> list[Any]:
    """The cases for `pytest.mark.parametrize`. By default the last value of a case is its kind."""
    seen: set[object] = set()
    parameters = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        parameters.append(pytest.param(*values, marks=[pytest.mark.faults] if kind(case) in seen else []))
        seen.add(kind(case))
    return parameters


def first(cases: Iterable[Any]) -> list[Any]:
    """All cases are of one kind."""
    return one_of_each(cases, kind=lambda _: None)
