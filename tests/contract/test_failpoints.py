"""Failpoints and switches are declared once, and each failpoint is hit by the service that its name says."""

from __future__ import annotations

import ast
from collections import Counter

from tenure.runtime.failpoints import FAILPOINTS, SWITCHES
from tests.contract.sources import calls_of

FOLDERS = ("tenure", "services", "edges")


def names_given_to(function: str) -> list[tuple[str, str]]:
    """The literal names that a function is called with, each with its service: `tenure/worker/x.py` is the worker's."""
    return [
        (str(call.args[0].value), file.split("/")[1])
        for file, call in calls_of(function, FOLDERS)
        if isinstance(call.func, ast.Name) and call.args and isinstance(call.args[0], ast.Constant)
    ]


def test_every_failpoint_has_one_call_in_its_service() -> None:
    assert Counter(names_given_to("failpoint")) == Counter((name, name.partition(".")[0]) for name in FAILPOINTS)


def test_every_switch_is_declared() -> None:
    read = {name for name, _ in names_given_to("failpoint_enabled")}
    assert read <= set(SWITCHES), "declare it in tenure/runtime/failpoints.py"
