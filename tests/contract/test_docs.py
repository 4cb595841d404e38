"""What README.md and ARCHITECTURE.md point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from anthropic.resources.messages.messages import DEPRECATED_MODELS

from bench.sizing import Load, table
from devstack.simulator.scenario import ScenarioLibrary
from tenure import Client
from tenure import client as below_client
from tenure.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCS = ("README.md", "ARCHITECTURE.md")
PATHS = re.compile(r"`((?:services|tenure|tests|protos|deploy|bench|examples)/[\w./*]*)`")


@pytest.mark.parametrize("document", DOCS)
def test_every_path_named_exists(document: str) -> None:
    named = PATHS.findall((ROOT / document).read_text())
    assert named
    missing = [path for path in named if not list(ROOT.glob(path.rstrip("/")))]
    assert missing == []


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for document in DOCS for name in re.findall(r"make ([a-z-]+)", (ROOT / document).read_text())}
    assert named <= targets


def test_every_verb_named_exists() -> None:
    text = "\n".join((ROOT / document).read_text() for document in DOCS)
    assert set(re.findall(r"bin/tenure ([a-z]+)|`tenure ([a-z]+)", text))
    named = {word for pair in re.findall(r"bin/tenure ([a-z]+)|`tenure ([a-z]+)", text) for word in pair if word}
    assert named <= set(cli.commands)


def test_every_simulated_model_named_is_shipped() -> None:
    """Readers type them after a plain `tenure dev`."""
    library = ScenarioLibrary()
    pages = [ROOT / document for document in DOCS] + sorted((ROOT / "docs").glob("*.md"))
    named = {name for page in pages for name in re.findall(r"\bsim-[a-z][a-z0-9-]+\b", page.read_text())}
    assert len(named) > 5
    unknown = {name for name in named if library.find(name) is None}
    assert unknown == {"sim-helo", "sim-note", "sim-shop"}  # a slip that a page shows, and the reader's own


def test_no_model_named_is_deprecated() -> None:
    """Readers copy the names, and the provider refuses them some months later."""
    files = [path for folder in ("docs", "examples", "tenure", "services") for path in (ROOT / folder).rglob("*.*")]
    texts = {path: path.read_text() for path in (*files, ROOT / "README.md") if path.suffix in {".md", ".py", ".mjs"}}
    named = {(path.name, name) for path, text in texts.items() for name in re.findall(r"\bclaude-[a-z0-9-]+\w", text)}
    assert len(named) > 10
    assert {(page, name) for page, name in named if name in DEPRECATED_MODELS} == set()


def test_methods_of_the_client_that_pages_name_exist() -> None:
    """`Client` is that of `from tenure import Client`. A page that means the one below says `tenure.client.Client`."""
    wrong = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for below, name in re.findall(r"`(tenure\.client\.)?Client\.([a-z_]+)", page.read_text(encoding="utf-8")):
            if not hasattr(below_client.Client if below else Client, name):
                wrong.append(f"{page.name}: {below}Client.{name}")
    assert wrong == []


def test_the_sizing_page_has_the_table_of_its_model() -> None:
    page = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    begin, end = "<!-- the table: printed by python -m bench.sizing -->", "<!-- the end of the table -->"
    assert page.partition(begin)[2].partition(end)[0].strip() == table(Load(active=10_000))
