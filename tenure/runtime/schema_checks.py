"""Checks the result schemas in requests: each schema once, a few at a time, in child processes.

A tenant has one running check at a time, so that tenants share the checks fairly, and a bounded number of waiting
checks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import signal
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from tenure.domain.errors import FieldViolation, InvalidRequest, LimitReached, Unavailable
from tenure.domain.result_schema import ResultValidation, problem_of_schema, validate_result
from tenure.runtime.observability import metrics
from tenure.runtime.request_context import current_tenant

MAX_AT_ONCE: Final = 2
MAX_PER_TENANT: Final = 8
"""The limit of the running and waiting checks of one tenant."""
MAX_VERDICTS: Final = 4096

_RETRY_SECONDS: Final = 1.0


@dataclass(slots=True)
class _TenantChecks:
    """The running and the waiting checks of one tenant."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending: int = 0


class SchemaChecks:
    """The schema checks of one process, with a cache of their results.

    `schemas_in` returns the fields of a request that hold a schema, as pairs of field name and schema text.
    """

    def __init__(self, schemas_in: Callable[[Any], Iterable[tuple[str, str]]]) -> None:
        self._schemas_in = schemas_in
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._tenants: dict[str, _TenantChecks] = {}
        self._problems: OrderedDict[bytes, str] = OrderedDict()

    async def examine(self, request: Any) -> None:
        """Checks the schemas of a request.

        Raises InvalidRequest for an unusable schema, LimitReached (SCHEMA_CHECKS_BUSY) if the tenant has too many
        checks, and Unavailable (JUDGING_TIMEOUT) if the machine is too busy.
        """
        problems = [(name, await self._problem(schema_json)) for name, schema_json in self._schemas_in(request)]
        violations = [FieldViolation(name, problem) for name, problem in problems if problem]
        if violations:
            raise InvalidRequest(violations=violations)

    async def _problem(self, schema_json: str) -> str:
        digest = hashlib.sha256(schema_json.encode()).digest()
        if digest in self._problems:
            self._problems.move_to_end(digest)
            return self._problems[digest]
        async with self._check_of(current_tenant()):
            if digest not in self._problems:  # an earlier request may have had the same schema
                async with self._slots:
                    metrics.count("tenure_result_schemas_checked_total")
                    self._problems[digest] = await check_schema_in_child(schema_json)
                if len(self._problems) > MAX_VERDICTS:
                    self._problems.popitem(last=False)
            return self._problems[digest]

    @asynccontextmanager
    async def _check_of(self, tenant: str) -> AsyncIterator[None]:
        checks = self._tenants.setdefault(tenant, _TenantChecks())
        if checks.pending >= MAX_PER_TENANT:
            message = f"{MAX_PER_TENANT} new result schemas of this tenant are already being checked: try again later"
            raise LimitReached(message, reason="SCHEMA_CHECKS_BUSY", retry_after_seconds=_RETRY_SECONDS)
        checks.pending += 1
        try:
            async with checks.lock:
                yield
        finally:
            checks.pending -= 1
            if not checks.pending:
                del self._tenants[tenant]


# Checks clients' JSON Schemas, and validates answers against them, in a child process with bounded resources.
#
# A pattern can take minutes to compile and unlimited time to match, and combined schemas multiply their cost. In the
# process of a service this would block its event loop, and with it the calls of all tenants.

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
_COMMAND: Final = (sys.executable, "-P", "-m", "tenure.runtime.schema_checks")


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
