"""Habits that no linter knows, each with what to do instead."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_LINES = 600
MAX_NAME_CHARACTERS = 60
MAPPED = re.compile(r"^[a-z_0-9]+(?:\.py|/) +\S", re.MULTILINE)
# These wait outside of event loops for what sends no event when it is ready: processes that start, locks of files,
# services that read a file again.
MAY_SLEEP = {
    "devstack/child_process.py",
    "services/tools/builtin/records.py",
    "services/tools/sandbox/uid_locks.py",
    "devstack/etcd.py",
    "devstack/guard.py",
    "devstack/postgres_process.py",
    "tenure/cli/keys.py",
}
# A library has no main.py: the client reads where the gateway is, as the command does.
MAY_READ_THE_ENVIRONMENT = {
    "devstack/all_services.py",
    "tenure/cli/main.py",
    "tenure/sdk/connection.py",
    "tenure/agents/worker.py",
}


@cache
def sources() -> dict[str, ast.Module]:
    """What we wrote, by path; the generated code is left out."""
    paths = [
        path for root in ("tenure", "services", "devstack", "checker") for path in sorted((ROOT / root).rglob("*.py"))
    ]
    names = {str(path.relative_to(ROOT)): path for path in paths if path.parent != ROOT / "tenure" / "v1"}
    assert len(names) > 100
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in names.items()}


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


def places(module: str, *names: str) -> Iterator[tuple[str, int]]:
    """Where it is used."""
    for file, tree in sources().items():
        for node in ast.walk(tree):
            if is_attribute(node, module, *names):
                yield file, getattr(node, "lineno", 0)


def test_the_environment_is_read_in_main_only() -> None:
    reading = [f"{file}:{line}" for file, line in places("os", "environ", "environb", "getenv", "getenvb")]
    allowed = [place for place in reading if is_main(place.partition(":")[0])]
    assert allowed, "the check itself finds nothing any more"
    assert reading == allowed, "read the environment in main.py, and pass on what was read"


def is_main(file: str) -> bool:
    parts = file.split("/")
    return file in MAY_READ_THE_ENVIRONMENT or (len(parts) == 3 and parts[0] == "services" and parts[2] == "main.py")


def test_nothing_sleeps_that_could_wait_for_something() -> None:
    sleeping = {file for file, _ in places("time", "sleep")}
    assert sleeping == MAY_SLEEP, "wait for a named thing; in a coroutine time.sleep stops everybody"


def test_no_error_is_swallowed_without_a_word() -> None:
    silent = [
        f"{file}:{node.lineno}"
        for file, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and len(node.body) == 1 and isinstance(node.body[0], ast.Pass)
    ]
    assert silent == [], "use contextlib.suppress with the one error that is meant, and say why"


def test_files_stay_short_enough_to_be_read() -> None:
    long = {
        file: lines
        for file in sources()
        if (lines := len((ROOT / file).read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}, f"split what has more than {MAX_LINES} lines by what it does"


def test_the_map_of_a_package_names_each_of_its_files() -> None:
    """A reader who follows ARCHITECTURE.md looks there first. A package without a map has few files."""
    missing = []
    for file, tree in sources().items():
        head = ast.get_docstring(tree) or ""
        if Path(file).name == "__init__.py" and len(MAPPED.findall(head)) >= 3:
            modules = [path.name for path in (ROOT / file).parent.glob("*.py") if not path.name.startswith("__")]
            packages = [f"{path.parent.name}/" for path in (ROOT / file).parent.glob("*/__init__.py")]
            missing += [f"{file}: {name}" for name in (*modules, *packages) if name not in head]
    assert missing == [], "say in the docstring of the package what these files have"


def test_no_folder_of_tests_is_left_out() -> None:
    """Their order is said in the project's file, so a new one has to be named there."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    left_out = [folder for folder in folders if not any(map(folder.is_relative_to, options["testpaths"]))]
    assert folders
    assert not left_out, "name it in testpaths"


def test_the_type_checker_reads_every_file() -> None:
    """Code that no check reads calls functions by signatures of long ago."""
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    ours = {folder.name for folder in folders if any(folder.rglob("*.py"))} - {"build", "dist"}
    assert ours == set(checked)


def test_names_of_tests_are_short() -> None:
    """A name states one law; its conditions stand in the docstring."""
    long = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "node_modules" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if len(node.name) > MAX_NAME_CHARACTERS
    ]
    assert long == []
