"""A call whose answer says that nothing was done proves it, so that its effect key is free again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.contract.sources import files_with, parse

_SAID = "nothing was done"
_FOLDERS = ("services", "edges")
_NO_ANSWERS = {
    "services/tools/tool.py",  # nothing_done and NothingDone, which state the proof with the text
    "services/tools/registry.py",  # outcomes of calls that never run, which accept_rules.py records with the proof
    "services/tools/calls/effects.py",  # outcomes of calls that mark_not_sent vouches for
    "services/tools/calls/caller_runs.py",  # an error: the call is sent again
}


def test_an_answer_that_says_so_has_the_proof() -> None:
    """Use `nothing_done(…)` or raise `NothingDone`: they write the sentence, and the record then has `no_effect`."""
    said = {file for file in files_with(f"(?i){_SAID}", _FOLDERS) if any(_texts(parse(file)))}
    assert said == _NO_ANSWERS


def _texts(tree: ast.Module) -> Iterator[str]:
    """The texts of a module that say so, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings and _SAID in str(node.value).lower():
            yield str(node.value)
