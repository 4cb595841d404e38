"""Habits that no linter knows, each with what to do instead."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.contract.sources import PRODUCT, ROOT, files_with, parse, texts

MAX_LINES = 600
MAX_NAME_CHARACTERS = 60
CONSTANT = re.compile(r"^(_?[A-Z][A-Z0-9_]*): (.*)", re.MULTILINE)
MAPPED = re.compile(r"^[a-z_0-9]+(?:\.py|/) +\S", re.MULTILINE)
# These wait outside of event loops for what sends no event when it is ready: processes that start, locks of files,
# services that read a file again.
MAY_SLEEP = {
    "devstack/child_process.py",
    "devstack/data_dir.py",
    "services/tools/builtin/records.py",
    "services/tools/sandbox/uid_locks.py",
    "devstack/etcd.py",
    "devstack/watchdog.py",
    "devstack/postgres_process.py",
    "tenure/cli/keys.py",
}
# A library has no main.py: the client reads where the gateway is, as the command does.
MAY_READ_THE_ENVIRONMENT = {
    "tenure/runtime/fork_server.py",
    "tenure/__init__.py",  # sets a variable before gRPC is imported
    "devstack/all_services.py",
    "tenure/cli/context.py",
    "tenure/cli/main.py",
    "tenure/sdk/connection.py",
    "tenure/agents/worker.py",
    "tenure/testing/worker_program.py",
}


def is_attribute(node: ast.AST, module: str, *names: str) -> bool:
    """Whether this is `module.name`, or imports it from there."""
    if isinstance(node, ast.ImportFrom):
        return node.module == module and any(alias.name in names for alias in node.names)
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    )


def uses(module: str, *names: str) -> Iterator[tuple[str, int]]:
    """The files and lines that use one of these names of the module."""
    for file in files_with(rf"\b({'|'.join(names)})\b"):
        for node in ast.walk(parse(file)):
            if is_attribute(node, module, *names):
                yield file, getattr(node, "lineno", 0)


def test_only_main_reads_the_environment() -> None:
    reading = [f"{file}:{line}" for file, line in uses("os", "environ", "environb", "getenv", "getenvb")]
    allowed = [use for use in reading if is_main(use.partition(":")[0])]
    assert allowed, "the check itself finds nothing any more"
    assert reading == allowed, "read the environment in main.py, and pass on what was read"


def is_main(file: str) -> bool:
    parts = file.split("/")
    return file in MAY_READ_THE_ENVIRONMENT or (len(parts) == 3 and parts[0] == "services" and parts[2] == "main.py")


def test_only_listed_files_sleep() -> None:
    sleeping = {file for file, _ in uses("time", "sleep")}
    assert sleeping == MAY_SLEEP, "wait for a named event; in a coroutine time.sleep stops the event loop"


def test_no_error_is_swallowed() -> None:
    silent = [
        f"{file}:{node.lineno}"
        for file in files_with(r"^\s*pass\b|: *pass\b")
        for node in ast.walk(parse(file))
        if isinstance(node, ast.ExceptHandler) and len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
    ]
    assert silent == [], "use contextlib.suppress with the one error that is meant, and say why"


def test_each_constant_has_a_reader() -> None:
    """A bound that nothing reads is a second, wrong number as soon as the one that counts is changed."""
    everywhere = texts(*PRODUCT, "bench", "tests").values()
    attributes = {name for text in everywhere for name in re.findall(r"\.([A-Z]\w+)", text)}
    imported = {
        (module, name)
        for text in everywhere
        for module, names in re.findall(r"^ *from ([\w.]+) import (\([^)]*\)|.*)", text, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    unread = [
        f"{file}: {name}"
        for file, text in texts(*PRODUCT, "bench").items()
        for name, made in CONSTANT.findall(text)
        if not (name in attributes or (module_of(file), name) in imported or is_read_in(file, name))
        if "EnumMap(" not in made  # it registers itself
    ]
    assert unread == []


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_read_in(file: str, name: str) -> bool:
    """Whether the module itself reads the constant. Most do so outside of texts and comments: they are not parsed."""
    code = re.sub(r'"""[^"]*(?:"(?!"")[^"]*)*"""|#.*', "", texts(*PRODUCT, "bench")[file])
    return len(re.findall(rf"\b{name}\b", code)) > 1 or any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(parse(file))
    )


def test_files_are_short() -> None:
    long = {file: lines for file, text in texts(*PRODUCT).items() if (lines := len(text.splitlines())) > MAX_LINES}
    assert long == {}, f"split what has more than {MAX_LINES} lines by what it does"


def test_the_map_of_a_package_names_each_file() -> None:
    """A reader who follows ARCHITECTURE.md looks there first. A package without a map has few files."""
    missing = []
    for file in texts(*PRODUCT):
        head = (ast.get_docstring(parse(file)) or "") if Path(file).name == "__init__.py" else ""
        if len(MAPPED.findall(head)) >= 3:
            modules = [path.name for path in (ROOT / file).parent.glob("*.py") if not path.name.startswith("__")]
            packages = [f"{path.parent.name}/" for path in (ROOT / file).parent.glob("*/__init__.py")]
            missing += [f"{file}: {name}" for name in (*modules, *packages) if name not in head]
    assert missing == [], "say in the docstring of the package what these files have"


def test_every_folder_of_tests_is_collected() -> None:
    """Their order is said in the project's file, so a new one has to be named there."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    folders = {Path(file).parent for file in texts("tests") if Path(file).name.startswith("test_")}
    assert folders
    left_out = [folder for folder in folders if not any(map(folder.is_relative_to, options["testpaths"]))]
    assert not left_out, "name it in testpaths"


def test_the_type_checker_reads_every_file() -> None:
    """Code that no check reads calls functions by signatures of long ago."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    ours = {folder.name for folder in folders if any(folder.rglob("*.py"))} - {"build", "dist"}
    assert ours == set(checked)


def test_names_of_tests_are_short() -> None:
    """A name states one law; its conditions stand in the docstring."""
    test = re.compile(rf"^ *(?:async )?def (test_\w{{{MAX_NAME_CHARACTERS - 4},}})\(", re.MULTILINE)
    long = [f"{file}: {name}" for file, text in texts("tests").items() for name in test.findall(text)]
    assert long == []


def test_tests_watch_the_sessions_of_their_own_database() -> None:
    """All tests share one server of Postgres. Its views show the sessions and locks of every database."""
    bounded = re.compile(r"current_database\(\)|pg_blocking_pids|pid = %s")
    shared = re.compile(r"pg_stat_activity|pg_locks")
    folders = ("tests/conformance", "tests/end_to_end", "tests/security", "tests/model", "tests/upgrade")
    wide = [
        f"{file}:{text.count(chr(10), 0, found.start()) + 1}"
        for file, text in texts(*folders).items()
        for found in shared.finditer(text)
        if not bounded.search(text[max(0, found.start() - 120) : found.start() + 240])
    ]
    assert wide == [], "name the database, or the session that blocks"
