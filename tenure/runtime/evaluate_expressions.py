"""The child process of expressions.py: compiles and evaluates CEL expressions, one line of JSON for each request.

It begins with a line "ready". A request is `["compile", expression]`: the answer is a line with its problem, "" for
none. Or `["evaluate", values, evaluations]`: an evaluation is an expression with variables of its own. The answer is a
line for each: true, false, or a text that says why there is no value, and after that no further line. The kernel ends
the process when an expression takes too long or needs too much memory.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Iterator
from functools import lru_cache
from time import process_time
from typing import Any, Final

from cel_expr_python import cel

CPU_SECONDS: Final = 0.2
"""Processor time for one expression."""
REQUEST_CPU_SECONDS: Final = 1.0
"""Processor time for all expressions of a request."""
TOGETHER_TOO_SLOW: Final = "the rules of this call take too long together"
_LONGEST_REASON: Final = 1000
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
        return str(error)[:_LONGEST_REASON]
    if value.type() != _TYPES.BOOL:
        return str(value.value())[:_LONGEST_REASON]
    return bool(value.value())


def _answers(request: list[Any]) -> Iterator[bool | str]:
    if request[0] == "compile":
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        yield problem_of(request[1])
        return
    _, values, evaluations = request
    ends_at = process_time() + REQUEST_CPU_SECONDS
    for expression, own in evaluations:
        if process_time() >= ends_at:
            yield TOGETHER_TOO_SLOW
            return
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        value = value_of(expression, {**values, **own})
        yield value
        if isinstance(value, str):
            return


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
        for answer in _answers(json.loads(line)):
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.write(f"{json.dumps(answer)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
