"""Writes sync_client.py from client.py and task.py: the same methods, documentation and types, for synchronous code.

    python -m tenure.sdk.generate_sync

Each method of SyncClient and SyncTask runs the method of Client and Task in the event loop of loop_thread.py. Their
signatures and docstrings are in the file, so that editors, type checkers and `help()` know them. A test compares the
committed file with the generated one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
TARGET: Final = FOLDER / "sync_client.py"
_GENERATED_BY_HAND: Final = frozenset({"__init__", "__aenter__", "__aexit__", "__repr__", "close", "raw"})

_HEAD: Final = '''"""SyncClient and SyncTask. GENERATED from client.py and task.py by generate_sync.py; do not edit."""
# ruff: noqa: A002  the contract's word `input` is an argument

from __future__ import annotations

{imports}
from tenure.sdk.client import Client
from tenure.sdk.loop_thread import LoopCalls, SyncStubs
from tenure.sdk.task import Task
from tenure.sdk.task_filter import States

T = TypeVar("T")
'''

_TASK: Final = """
class SyncTask(Generic[T]):
{doc}

    def __init__(self, calls: LoopCalls, task: Task[T]) -> None:
        self._calls, self._task = calls, task

    def __repr__(self) -> str:
        return f"<{{type(self).__name__}} {{self.id}} {{self.state}}>"

"""

_CLIENT: Final = '''
class SyncClient:
{doc}

    def __init__(
        self,
        address: str | None = None,
        *,
        api_key: str | Callable[[], str] | None = None,
        tenant: str | None = None,
        tls: ClientTls | bool | None = None,
    ) -> None:
        self._client = Client(address, api_key=api_key, tenant=tenant, tls=tls)
        self._calls = LoopCalls()

    def __enter__(self) -> Self:
        if self._client._connection.is_guessed:  # noqa: SLF001  else it connects later: a process may fork before
            self._calls.run(self._client.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Calls that still run in other threads end with Unavailable (CLIENT_CLOSED)."""
        self._calls.end(self._client.close)

    @property
    def raw(self) -> SyncStubs:
        """The gRPC stubs: `tasks`, `admin`, `leases`, `schedules`, `tenants`, `webhooks`, `agents` and so on."""
        return SyncStubs(self._calls, self._client._connection.checked)  # noqa: SLF001  checks the gateway once

'''


def generated() -> str:
    """Returns the text of sync_client.py, as ruff formats it."""
    task, client = _class(FOLDER / "task.py", "Task"), _class(FOLDER / "client.py", "Client")
    parts = [
        _HEAD.format(imports=_imports()),
        _TASK.format(doc=_docstring(task, 4)),
        *_methods(task, "_task"),
        _CLIENT.format(doc=_docstring(client, 4)),
        *_methods(client, "_client"),
    ]
    return _formatted("".join(parts))


def _class(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _imports() -> str:
    """Returns the imports of both modules, of which ruff removes those that are not used."""
    lines = []
    for file in ("client.py", "task.py"):
        for node in ast.walk(ast.parse((FOLDER / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module != "__future__":
                lines.append(ast.unparse(node))  # noqa: PERF401  two loops and a condition read better unfolded
    return "\n".join([*lines, "from collections.abc import Iterator"])


def _methods(source: ast.ClassDef, inner: str) -> Iterator[str]:
    for node in source.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_public = not node.name.startswith("_") or node.name == "__repr__"
        if is_public and node.name not in _GENERATED_BY_HAND:
            yield _method(node, inner)


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, inner: str) -> str:
    returns = ast.unparse(node.returns) if node.returns else "None"
    decorators = [f"    @{ast.unparse(each)}\n" for each in node.decorator_list]
    arguments = ast.unparse(node.args)
    head = f"    def {node.name}({arguments}) -> {_sync_type(returns)}:"
    if "    @overload\n" in decorators:
        return f"{''.join(decorators)}{head} ...\n\n"
    if "    @property\n" in decorators:
        body = f"return self.{inner}.{node.name}"
    elif isinstance(node, ast.FunctionDef):
        body = f"return self.{inner}.{node.name}({_passed(node.args)})"
    else:
        body = _call(node, inner, returns)
    return f"{''.join(decorators)}{head}\n{_docstring(node, 8)}\n        {body}\n\n"


def _call(node: ast.AsyncFunctionDef, inner: str, returns: str) -> str:
    method, passed = f"self.{inner}.{node.name}", _passed(node.args)
    call = f"lambda: {method}({passed})" if passed else method
    is_generator = returns.startswith("AsyncGenerator[")
    runner = f"self._calls.{'iterate' if is_generator else 'run'}({call})"
    if returns.startswith("AsyncGenerator[Task["):
        return f"return (SyncTask(self._calls, task) for task in {runner})"
    return f"return SyncTask(self._calls, {runner})" if returns.startswith("Task[") else f"return {runner}"


def _passed(arguments: ast.arguments) -> str:
    positional = [argument.arg for argument in arguments.args[1:]]
    options = [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join([*positional, *(f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs), *options])


def _sync_type(annotation: str) -> str:
    return re.sub(r"\bTask\[", "SyncTask[", annotation.replace("AsyncGenerator[", "Iterator["))


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, indent: int) -> str:
    text = ast.get_docstring(node, clean=True) or ""
    for pattern, replacement in _WORDS:
        text = re.sub(pattern, replacement, text)
    lines = f'"""{text}'.split("\n")
    last = lines[-1] + '"""' if len(lines) == 1 else None
    closed = [last] if last else [*lines, '"""']
    return "\n".join(f"{' ' * indent}{line}" if line else "" for line in closed)


_WORDS: Final = (
    (r"The asyncio client of Tenure\.", "The synchronous client of Tenure: for scripts, notebooks, Django and Flask."),
    (
        r"A Client connects at its first call and belongs .* at once\.",
        "A SyncClient connects at its first call, which must come after a fork. Many threads may use it at once.",
    ),
    (r"A Client makes it", "A SyncClient makes it"),
    (r"async with Client\(", "with SyncClient("),
    (r"\bawait ", ""),
    (r"async for", "for"),
)


def _formatted(text: str) -> str:
    """Returns the text without unused imports, in the format of the project."""
    ruff = Path(sys.executable).parent / "ruff"
    for command in (["check", "--select=F401,I001,F811", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        run = subprocess.run(
            [str(ruff), *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = run.stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
