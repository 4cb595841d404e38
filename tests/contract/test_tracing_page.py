"""docs/tracing.md has every attribute and every event of spans, and none that does not exist."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tenure.domain import semconv

PAGE = Path(__file__).parents[2] / "docs" / "tracing.md"


def table(name: str, meanings: Mapping[str, str]) -> str:
    rows = "".join(f"| `{one}` | {meaning} |\n" for one, meaning in meanings.items())
    return f"<!-- {name}s -->\n\n| {name} | meaning |\n|---|---|\n{rows}\n<!-- /{name}s -->"


@pytest.mark.parametrize(("name", "meanings"), [("attribute", semconv.ATTRIBUTES), ("event", semconv.EVENTS)])
def test_the_page_has_the_tables_of_the_code(name: str, meanings: Mapping[str, str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"<!-- {name}s -->.*?<!-- /{name}s -->", re.DOTALL)
    if os.environ.get("TENURE_WRITE_GOLDEN"):
        PAGE.write_text(pattern.sub(lambda _: table(name, meanings), text), encoding="utf-8")
    assert pattern.findall(text) == [table(name, meanings)], "TENURE_WRITE_GOLDEN=1 writes the page"


def test_every_name_has_a_meaning() -> None:
    names = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
    operations = {semconv.INVOKE_AGENT, semconv.CHAT, semconv.EXECUTE_TOOL}
    assert names == {*semconv.ATTRIBUTES, *semconv.EVENTS, *operations}
    assert {name for name, meaning in semconv.ATTRIBUTES.items() if meaning.startswith("content")} == semconv.CONTENT
