"""The child process of expressions.py: compiles and evaluates CEL expressions, one line of JSON for each request.

It begins with a line "ready". A request is `["compile", expressions]` or `["evaluate", expressions, values]`. The
answer has an item for each expression: the problem of it ("" for none), or its value (true or false, or a text that
says why there is none). The kernel ends the process when a request takes too long or needs too much memory.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel

CPU_SECONDS: Final = 0.2
"""Processor time for one request."""
MAX_MEMORY_BYTES: Final = 512 * 1024 * 1024
_TYPES: Final = cel.Type
_ENVIRONMENT: Final = cel.NewEnv(
    variables={
        "args": _TYPES.Map(_TYPES.STRING, _TYPES.DYN),
        "labels": _TYPES.Map(_TYPES.STRING, _TYPES.STRING),
        **dict.fromkeys(("task", "agent", "tenant", "tool"), _TYPES.STRING),
        "used.count": _TYPES.INT,
        "used.sum": _TYPES.DOUBLE,
    }
)


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> Any:
    """Returns the compiled expression. Raises ValueError with the fault and its place."""
    try:
        compiled = _ENVIRONMENT.compile(expression)
    except RuntimeError as error:
        raise ValueError(str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")) from None
    if compiled.return_type() != _TYPES.BOOL:
        raise ValueError(f"its value must be a BOOL, and is {compiled.return_type().name()}")
    return compiled


def problem_of(expression: str) -> str:
    """Returns the problem of an expression; "" for none."""
    try:
        _compiled(expression)
    except ValueError as error:
        return str(error)
    return ""


def value_of(expression: str, values: dict[str, Any]) -> bool | str:
    """Returns the value of an expression, or why there is none."""
    try:
        value = _compiled(expression).eval(data=values)
    except (ValueError, RuntimeError, TypeError, UnicodeError) as error:
        return str(error)
    if value.type() != _TYPES.BOOL:
        return str(value.value())
    return bool(value.value())


def _answer(line: str) -> list[bool | str]:
    kind, expressions, *values = json.loads(line)
    if kind == "compile":
        return [problem_of(expression) for expression in expressions]
    return [value_of(expression, values[0]) for expression in expressions]


def main() -> None:
    """Serves requests until standard input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        answer = json.dumps(_answer(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
