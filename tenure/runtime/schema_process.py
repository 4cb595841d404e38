"""Checks clients' JSON Schemas, and validates answers against them, in a child process with bounded resources.

A pattern can take minutes to compile and unlimited time to match, and combined schemas multiply their cost. In the
process of a service this would block its event loop, and with it the calls of all tenants.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from importlib import import_module
from typing import Any, Final

from tenure.domain.errors import Unavailable
from tenure.domain.result_schema import ResultValidation, problem_of_schema, validate_result

JUDGE_CPU_SECONDS: Final = 10
"""CPU time for one answer. A validation that needs more would practically never end, on any machine."""
CHECK_CPU_SECONDS: Final = 2
"""CPU time for one schema, after the imports: jsonschema imports what is installed, for 0.1 s or for several."""
MAX_MEMORY_BYTES: Final = 512 * 1024 * 1024
LONGEST_SECONDS: Final = 120.0
"""Wall-clock time until Unavailable is raised: the machine is too busy, which is not a property of the schema."""

TOO_COSTLY_ANSWER: Final = "the answer could not be validated against the schema in time: give a simpler answer"
TOO_COSTLY_SCHEMA: Final = "takes too long to check: use simpler patterns"

_OUT_OF_MEMORY: Final = 3
_OVER_LIMIT: Final = frozenset({-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL, _OUT_OF_MEMORY})
"""Exit codes of a process that exceeded a limit: of CPU time its own, or the one that it inherited, or of memory."""
_NICENESS: Final = 10
_COMMAND: Final = (sys.executable, "-P", "-m", "tenure.runtime.schema_process")


async def validate_in_child(schema_json: str, answer: str, *, cpu_seconds: int = JUDGE_CPU_SECONDS) -> ResultValidation:
    """Runs `validate_result` of tenure.domain.result_schema in a child process.

    Raises Unavailable (JUDGING_TIMEOUT) if the machine is too busy.
    """
    reply = await _run([cpu_seconds, schema_json, answer])
    if reply is None:
        return ResultValidation(violations=(TOO_COSTLY_ANSWER,))
    result_json, violations = reply
    return ResultValidation(result_json, tuple(violations))


async def check_schema_in_child(schema_json: str, *, cpu_seconds: int = CHECK_CPU_SECONDS) -> str:
    """Runs `problem_of_schema` of tenure.domain.result_schema in a child process.

    Raises Unavailable (JUDGING_TIMEOUT) if the machine is too busy.
    """
    reply = await _run([cpu_seconds, schema_json, None])
    return TOO_COSTLY_SCHEMA if reply is None else str(reply)


async def _run(arguments: list[Any]) -> Any:
    """Returns the JSON value that `main` wrote, or None if the child process exceeded a limit."""
    pipe = asyncio.subprocess.PIPE
    too_busy = "a result schema could not be applied because the machine is too busy: try again later"
    try:
        process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=pipe, stdout=pipe)
    except OSError as error:  # no memory, process or descriptor is left
        raise Unavailable(f"{too_busy} ({error.strerror or error})", reason="JUDGING_TIMEOUT") from error
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            output, _ = await process.communicate(json.dumps(arguments).encode())
    except TimeoutError:
        raise Unavailable(too_busy, reason="JUDGING_TIMEOUT") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in _OVER_LIMIT:
        return None
    if process.returncode != 0:
        raise RuntimeError(f"the process that applies a result schema ended with exit code {process.returncode}")
    return json.loads(output)


def main() -> None:
    """The child process: reads `[cpu_seconds, schema, answer or null]` and writes the result as JSON.

    The result is `[result_json, violations]` for an answer, and the problem of the schema ("" for none) without one.
    """
    cpu_seconds, schema_json, answer = json.load(sys.stdin.buffer)
    os.nice(_NICENESS)
    import_module("jsonschema")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # RLIMIT_CPU has whole seconds, and would count the imports
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        reply = _reply(schema_json, answer)
    except MemoryError:
        sys.exit(_OUT_OF_MEMORY)
    sys.stdout.write(json.dumps(reply))


def _reply(schema_json: str, answer: str | None) -> Any:
    if answer is None:
        return problem_of_schema(schema_json)
    validation = validate_result(schema_json, answer)
    return [validation.result_json, validation.violations]


def _limit(which: int, most: int) -> None:
    """Sets a resource limit, unless the limit inherited from the service is lower."""
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    main()
