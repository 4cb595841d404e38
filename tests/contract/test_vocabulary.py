"""The glossary's short list of names that the code does not use, each with the noun to use instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tenure", "services", "devstack", "checker", "bench", "examples", "spec", "protos")

# A variable that is named after the way it arrived does not say what it holds.
BANNED_NAMES = {
    "told": "the noun of the value: message, options, entries, cursor",
    "asked": "request",
    "found": "the noun of the value: task, row, match",
    "rests": "crash_backoff",
    "no_room": "budget_wait",
    "judging": "result_validation",
    "leaving": "transitions",
    "families": "sub_agent_events",
    "family_news": "sub_agent_events",
    "foreign": "external",
    "letters": "deliveries",
    "vanishing": "key_watch",
    "losses": "lost_claims",
    "stalled": "stuck",
    "hints": "queue_events",
    "attaching": "session_attach",
    "tool_fence": "tools_client",
    "lasting": "long_running",
    "looking": "monitor",
    "attacher": "mount_helper",
    "guarding": "reaper_client",
    "fates": "delivery_errors",
    "keeper": "the store that it keeps: output_store, subprocess_reaper",
    "complaints": "stderr_lines",
    "vouch_unsent": "mark_not_sent",
    "converse": "send_and_fork",
    "strangers": "the noun of the peer: server, provider",
    "begins": "starts",
    "take_word": "take_resolution",
    "decide_word": "decide_resolution",
    "conclude_word": "conclude_resolution",
    "Asked": "CallRequest",
    "Displaced": "Superseded",
    "JudgeAnswer": "ValidateResult",
    "Nudge": "ContinueTruncated",
    "ToolFence": "ToolsClient",
}
BANNED_MODULES = {
    *(name for name in BANNED_NAMES if name.islower()),
    *("aging", "complaints", "deaths", "endings", "exchanges", "exits", "facts", "guard", "held", "hidden"),
    *("holdings", "hooks", "lines", "measures", "missing", "owned", "owners", "pace", "parted", "parts", "places"),
    *("remembered", "resolving", "room", "sharing", "shown", "trails", "turns", "watched", "words"),
}


def python_files() -> list[Path]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 100
    return [path for path in files if path.parent != ROOT / "tenure" / "v1"]


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of variables, arguments, attributes, functions and classes where they are defined."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def test_no_name_is_one_of_those_that_the_glossary_rules_out() -> None:
    banned = [
        f"{path.relative_to(ROOT)}:{line}: {name}: say {BANNED_NAMES[name.strip('_')]}"
        for path in python_files()
        for name, line in defined_names(ast.parse(path.read_text(encoding="utf-8")))
        if name.strip("_") in BANNED_NAMES
    ]
    assert banned == []


def test_no_module_has_a_name_that_the_glossary_rules_out() -> None:
    banned = [str(path.relative_to(ROOT)) for path in python_files() if path.stem in BANNED_MODULES]
    assert banned == [], "see docs/glossary.md"


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Except the clients: each service calls its client of a peer by the name of the peer.

    The public Client is made of the one below it, which has the contract's messages; so is the Stack for tests.
    """
    modules: dict[str, list[str]] = {}
    for path in python_files():
        name = path.relative_to(ROOT)
        if name.parts[0] not in {"tenure", "services", "devstack", "checker"}:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(name))
    shared = {name: where for name, where in modules.items() if len(where) > 1}
    assert set(shared) == {"Client", "LedgerClient", "Stack", "ToolsClient"}, shared
