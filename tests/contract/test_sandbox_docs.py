"""docs/sandbox.md tells of every abuse that is tested and of every way in which a program ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.tools.sandbox import SandboxStatus
from tests.fault.abuses import FAMILIES

TEXT = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_abuse_is_documented(family: str) -> None:
    (row,) = (line for line in TEXT.splitlines() if line.startswith(f"| {family} |"))
    assert row == f"| {family} | {', '.join(FAMILIES[family])} |"


def test_every_class_of_result_is_explained() -> None:
    section = TEXT.partition("## How a program ended")[2].partition("\n## ")[0]
    names = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert names == {*SandboxStatus, "FENCED"}
