"""The glossary's short list of names that the code does not use, each with the noun to use instead."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

import pytest

from tests.contract.sources import PRODUCT, ROOT, files_with, parse, texts

FOLDERS = ("tenure", "services", "edges", "devstack", "checker", "bench", "examples", "spec", "protos")

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
    "Nudge": "AskAgain",
    "ToolFence": "ToolsClient",
}
BANNED_MODULES = {
    *(name for name in BANNED_NAMES if name.islower()),
    *("aging", "complaints", "deaths", "endings", "exchanges", "exits", "facts", "guard", "held", "hidden"),
    *("holdings", "hooks", "lines", "measures", "missing", "owned", "owners", "pace", "parted", "parts", "places"),
    *("remembered", "resolving", "room", "sharing", "shown", "trails", "turns", "watched", "words"),
}

# Words in names of tests that say nothing about the law, or have a noun in the glossary.
BANNED_IN_TESTS = {
    "told": "reported, or the noun of the value",
    "nobody": "no worker, no client, …",
    "somebody": "the actor: a client, an operator",
    "everybody": "every caller, every watcher",
    "whoever": "the actor: a client, an operator",
    "whatever": "any, every",
    "wherever": "any, every",
    "death": "end, crash",
    "deaths": "crashes, crash_loop",
    "rests": "backoff",
    "resting": "backoff",
    "place": "slot, path",
    "places": "slots",
    "door": "http_server, endpoint",
    "doors": "endpoints",
    "fate": "outcome",
    "fates": "outcomes",
    "stranger": "the noun of the peer: server, provider",
    "strangers": "the noun of the peer: server, provider",
    "judge": "validate, check",
    "judged": "validated",
    "judgement": "result_validation, check",
    "judging": "result_validation",
    "aside": "reserved",
    "vain": "unknown, unused",
    "aloud": "shown",
}
BANNED_FORMS = {
    r"(?:^|_)(?:is|are|as|be)_no_(?!longer|more)": "is_not_a_…",
    r"_(?:is|are)_none$": "is_unset, is_not_a_…",
    r"^test_(?:what|who|whoever)_": "begin with the noun: test_invalid_answer_is_refused",
    r"_that_there_(?:is|are)": "existing, unknown",
}


# Phrases that are not plain English, in code, comments, errors, SQL, protos, the console and docs.
BANNED_PHRASES = {
    r"\b(?<!there )(?<!there may )(?<!there will )(?:is|are|was|were|be) no (?!(?:longer|more|\w+er)\b)": "is not a",
    r"\b(?:is|are|was|were|be|been|being) told\b": "the subject, and the verb: Tenure reports, the model reads",
    r"\bthere is no (?:task|agent|schedule|webhook|delivery|tenant|api key|group) [{]": "task {…} not found",
    r"\bis of an unknown type\b": "has an unknown type",
    r"\bmust be known\b": "unknown state",
}
BANNED_PERSONS = {r"\b(?:nobody|somebody|everybody|whoever)\b": "the actor: no worker, a person, each reader"}
PRODUCT_PHRASES = BANNED_PHRASES | BANNED_PERSONS
PHRASE_FILES = (".py", ".sql", ".proto", ".js", ".html", ".md", ".yaml", ".yml", ".json", ".toml", ".pml")
PHRASE_FOLDERS = (
    *FOLDERS,
    "docs",
    "deploy",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "tests",
)
UNIX_ACCOUNT = ("devstack/postgres_cluster.py", "nobody")
NAME_THE_PHRASES = ("docs/glossary.md", "tests/contract/test_vocabulary.py", "tenure/v1/")
SKIPPED_FOLDERS = ("node_modules", "vendor", "__pycache__")


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of variables, arguments, attributes, functions and classes where they are defined."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno


def test_names_are_those_of_the_glossary() -> None:
    defined = rf"\b_*(?:{'|'.join(BANNED_NAMES)})_*\b"
    before, after = rf"\b(?:def|class) +{defined}", rf"{defined}\s*(?:[-+*/|&%^@<>]*=(?!=)|[:,)\]]|in\b)"
    banned = [
        f"{file}:{line}: {name}: say {BANNED_NAMES[name.strip('_')]}"
        for file in files_with(rf"{before}|{after}", FOLDERS)
        for name, line in defined_names(parse(file))
        if name.strip("_") in BANNED_NAMES
    ]
    assert banned == []


def test_names_of_modules_are_those_of_the_glossary() -> None:
    banned = [file for file in texts(*FOLDERS) if PurePath(file).stem in BANNED_MODULES]
    assert banned == [], "see docs/glossary.md"


def has_class(file: str, name: str) -> bool:
    """Whether the module defines the class: a text in it may, too."""
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in parse(file).body)


def test_a_public_class_has_a_unique_name() -> None:
    """Except the clients: each service calls its client of a peer by the name of the peer.

    The public Client is made of the one below it, which has the contract's messages; so is the Stack for tests.
    """
    modules: dict[str, set[str]] = {}
    for file, text in texts(*PRODUCT).items():
        for name in re.findall(r"^class ([A-Za-z]\w*)", text, re.MULTILINE):
            modules.setdefault(name, set()).add(file)
    shared = {
        name for name, files in modules.items() if sum(has_class(file, name) for file in files if len(files) > 1) > 1
    }
    assert shared == {"Client", "LedgerClient", "Stack", "ToolsClient"}


def problem_of(name: str) -> str:
    """What to say instead of a name of a test, a helper or a file; "" for a good name."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    instead = [advice for word, advice in BANNED_IN_TESTS.items() if word in words]
    return "; ".join([*instead, *(advice for form, advice in BANNED_FORMS.items() if re.search(form, name))])


def names_in_tests(file: str, text: str) -> Iterator[str]:
    """The name of the file, and those of its tests, helpers and classes; methods may have names of the product."""
    yield PurePath(file).stem
    yield from re.findall(r"^(?:async def|def|class) (\w+)", text, re.MULTILINE)
    yield from re.findall(r"^ +(?:async )?def (test_\w+)", text, re.MULTILINE)


def test_names_of_tests_state_laws_with_nouns_of_the_glossary() -> None:
    banned = [
        f"{file}: {name}: say {problem}"
        for file, text in texts("tests").items()
        for name in names_in_tests(file, text)
        if (problem := problem_of(name))
    ]
    assert banned == []


@pytest.mark.parametrize(
    "name", ["test_what_is_no_answer", "told_tasks", "ToldCall", "test_that_there_is", "x_is_none"]
)
def test_the_check_finds_banned_names(name: str) -> None:
    assert problem_of(name)


def prose_files() -> Iterator[tuple[str, str]]:
    """The product's own files of text and of tests, without generated and vendored ones, each with its text."""
    for name in PHRASE_FOLDERS:
        paths = [ROOT / name] if (ROOT / name).is_file() else sorted(walk(ROOT / name))
        for path in paths:
            file = path.relative_to(ROOT).as_posix()
            if path.suffix in PHRASE_FILES and not file.startswith(NAME_THE_PHRASES):
                yield file, path.read_text(encoding="utf-8")


def walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, without generated, vendored and cached ones."""
    for base, folders, files in os.walk(folder):  # Path.walk needs Python 3.12
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        yield from (Path(base) / name for name in files)


def banned_phrases(text: str, phrases: Mapping[str, str] = PRODUCT_PHRASES) -> list[tuple[str, str]]:
    """Each banned phrase of a text, with the words to use instead. A line break, also in a comment, is a space."""
    flat = " ".join(line.strip(" \t#/*-") for line in text.lower().split("\n"))
    hits = ((match, advice) for form, advice in phrases.items() for match in re.finditer(form, flat))
    return [(flat[max(match.start() - 20, 0) : match.end() + 20], advice) for match, advice in hits]


def test_texts_use_plain_phrases() -> None:
    account_file, account = UNIX_ACCOUNT
    banned = [
        f"{file}: …{phrase}…: say {advice}"
        for file, text in prose_files()
        for phrase, advice in banned_phrases(text, BANNED_PHRASES if file.startswith("tests/") else PRODUCT_PHRASES)
        if not (file == account_file and account in phrase)
    ]
    assert banned == []


@pytest.mark.parametrize(
    "text", ["the body is no JSON", "# sub-agents are no\n    # runs", "Nobody knows", 'f"there is no task {task_id}"']
)
def test_the_check_finds_banned_phrases(text: str) -> None:
    assert banned_phrases(text)
    assert not banned_phrases("There is no task here. It is no longer used, and there are no\n# errors.")
