"""A refactoring must not turn a mutation into nothing: each still finds the one place that it changes."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fault.mutants.catalogue import MUTATIONS
from tests.fault.mutants.loading import STATEMENTS, Edit


def text_of(edit: Edit) -> str:
    if edit.sql:
        return resources.files(edit.where).joinpath(STATEMENTS).read_text(encoding="utf-8")
    spec = find_spec(edit.where)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_edit_of_a_mutation_applies(name: Any) -> None:
    texts: dict[str, str] = {}
    for edit in MUTATIONS[name].edits:
        texts[edit.where] = edit.apply(texts.get(edit.where) or text_of(edit))
