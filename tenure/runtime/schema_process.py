"""Checks clients' JSON Schemas, and applies them to answers, in a child process with bounded resources.

A pattern can take minutes to compile and for ever to match, and combined schemas multiply. In a service's own process
that would stop its event loop, and with it the calls of all tenants.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from typing import Any, Final

from tenure.domain.errors import Unavailable
from tenure.domain.result_schema import ResultValidation, problem_of_schema, validate_result

JUDGE_CPU_SECONDS: Final = 10
"""Processor time for one answer: one that needs more is never finished, however fast the machine is."""
CHECK_CPU_SECONDS: Final = 2
"""Processor time for one schema. An ordinary one takes 0.2 s, which is the start of the process."""
MAX_MEMORY_BYTES: Final = 512 * 1024 * 1024
LONGEST_SECONDS: Final = 120.0
"""Wall-clock time until the caller is told to try again: the machine is too busy, which says nothing of the schema."""

TOO_COSTLY_ANSWER: Final = "the answer could not be compared with the schema in time: give a simpler one"
TOO_COSTLY_SCHEMA: Final = "takes too long to check: give it simpler patterns"

_OUT_OF_MEMORY: Final = 3
_OVER_LIMIT: Final = frozenset({-signal.SIGXCPU, -signal.SIGKILL, _OUT_OF_MEMORY})
"""Which signal ends a process at its limit of processor time differs between systems."""
_NICENESS: Final = 10
_COMMAND: Final = (sys.executable, "-P", "-m", "tenure.runtime.schema_process")


async def judge_apart(schema_json: str, answer: str, *, cpu_seconds: int = JUDGE_CPU_SECONDS) -> ResultValidation:
    """As tenure.domain.result_schema.validate_result. Raises Unavailable (JUDGING_TIMEOUT) when the machine is too
    busy.
    """
    reply = await _run([cpu_seconds, schema_json, answer])
    if reply is None:
        return ResultValidation(violations=(TOO_COSTLY_ANSWER,))
    result_json, violations = reply
    return ResultValidation(result_json, tuple(violations))


async def check_apart(schema_json: str, *, cpu_seconds: int = CHECK_CPU_SECONDS) -> str:
    """As tenure.domain.result_schema.problem_of_schema. Raises Unavailable (JUDGING_TIMEOUT), as judge_apart does."""
    reply = await _run([cpu_seconds, schema_json, None])
    return TOO_COSTLY_SCHEMA if reply is None else str(reply)


async def _run(job: list[Any]) -> Any:
    """What `main` wrote; None when it went over a limit."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            output, _ = await process.communicate(json.dumps(job).encode())
    except TimeoutError:
        message = "a result schema could not be applied: the machine is too busy"
        raise Unavailable(message, reason="JUDGING_TIMEOUT") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in _OVER_LIMIT:
        return None
    if process.returncode != 0:
        raise RuntimeError(f"the process that applies a result schema failed with {process.returncode}")
    return json.loads(output)


def main() -> None:
    """Reads the limit, a schema, and an answer or null; writes the judgement, or what is wrong with the schema."""
    cpu_seconds, schema_json, answer = json.load(sys.stdin.buffer)
    os.nice(_NICENESS)
    _limit(resource.RLIMIT_CPU, cpu_seconds)
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
    judgement = validate_result(schema_json, answer)
    return [judgement.result_json, judgement.violations]


def _limit(which: int, most: int) -> None:
    """The limit inherited from the service stays if it is lower."""
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    main()
