"""Evaluates CEL expressions in a child process, with bounded time and memory.

The arguments of a call are a stranger's, and the library is C++: in the process of a service, a slow or a broken
expression would stop the calls of all tenants. The child begins with the first expression, and again after one that it
did not survive. Only the child imports the library.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tenure.domain.errors import Unavailable

LONGEST_SECONDS: Final = 30.0
"""Wall-clock time until Unavailable is raised: the machine is too busy, which is not a property of the expression."""
_LONGEST_ANSWER: Final = 1024 * 1024
_COMMAND: Final = (sys.executable, "-P", "-m", "tenure.runtime.evaluate_expressions")
_TIME: Final = frozenset({-signal.SIGPROF, -signal.SIGXCPU})
_FROM_OUTSIDE: Final = frozenset({-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP})
TOO_SLOW: Final = "it takes too long"
T = TypeVar("T")
TOO_LARGE: Final = "it needs too much memory, or breaks the evaluation"
Evaluation = tuple[str, Mapping[str, Any]]
"""An expression, with variables of its own beside those of the request."""


class Expressions:
    """One child process, for one request at a time. Its `async with` ends the child."""

    def __init__(self, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest_seconds = longest_seconds
        self._lock = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def start(self) -> None:
        """Starts the child now, unless it runs: a caller that must not wait for a start calls it before. Raises
        Unavailable.
        """
        await self._alone(self._started)

    async def problem(self, expression: str) -> str:
        """Returns the problem of an expression, with its place; "" for none. Raises Unavailable."""
        [problem] = await self._ask(["compile", expression], 1)
        return str(problem)

    async def values(self, evaluations: Sequence[Evaluation], values: Mapping[str, Any]) -> list[bool | str]:
        """Returns the value of each expression, up to the first that has none: its item is a clause that says why.

        Raises Unavailable.
        """
        return await self._ask(["evaluate", values, evaluations], len(evaluations)) if evaluations else []

    async def _ask(self, request: list[Any], count: int) -> list[bool | str]:
        return await self._alone(lambda: self._exchange(json.dumps(request).encode() + b"\n", count))

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            try:
                async with asyncio.timeout(self._longest_seconds):
                    return await work()
            except TimeoutError:
                await self._end()
                raise _too_busy() from None
            except BaseException:
                await self._end()  # a later request must not read the answer of this one
                raise

    async def _exchange(self, request: bytes, count: int) -> list[bool | str]:
        """Returns the answers. If the child does not survive, the last one says why.

        The end of a child that had other requests before may have another cause, as may a signal from outside: a new
        child gets the request, too. Only the timer says for sure what was at fault.
        """
        is_new = self._child is None
        child = await self._started()
        answers = await _answers_of(child, request, count)
        if len(answers) == count or (answers and isinstance(answers[-1], str)):
            return answers
        code = await child.wait()
        self._child = None
        if code in _TIME:
            return [*answers, TOO_SLOW]
        if not is_new:
            return await self._exchange(request, count)
        if code in _FROM_OUTSIDE:
            message = "the process that evaluates rules was ended by a signal from outside: try again"
            raise Unavailable(message, reason="RULES_UNAVAILABLE", retry_after_seconds=1.0)
        return [*answers, TOO_LARGE]

    async def _started(self) -> asyncio.subprocess.Process:
        return self._child or await self._begin()

    async def _begin(self) -> asyncio.subprocess.Process:
        """Returns a child that takes requests. Its session is its own: Ctrl-C in a terminal does not reach it."""
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=pipe, stdout=pipe, limit=_LONGEST_ANSWER, env={}, start_new_session=True
            )
        except OSError as error:  # no memory, process or descriptor is left
            raise _too_busy() from error
        self._child = child
        assert child.stdout is not None, "it is a pipe"
        if await child.stdout.readline() != b"ready\n":
            await self._end()
            raise Unavailable("the process that evaluates rules did not start", reason="RULES_UNAVAILABLE")
        return child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()


async def _answers_of(child: asyncio.subprocess.Process, request: bytes, count: int) -> list[bool | str]:
    """Returns the answers of a child, up to the first text, or until the child ends."""
    assert child.stdin is not None, "both are pipes"
    assert child.stdout is not None, "both are pipes"
    answers: list[bool | str] = []
    with suppress(ConnectionError):  # the child has ended: its exit code says why
        child.stdin.write(request)
        await child.stdin.drain()
        while len(answers) < count and (line := await child.stdout.readline()).endswith(b"\n"):
            answers.append(json.loads(line))
            if isinstance(answers[-1], str):
                break
    return answers


def _too_busy() -> Unavailable:
    message = "a rule could not be evaluated because the machine is too busy: try again later"
    return Unavailable(message, reason="RULES_UNAVAILABLE", retry_after_seconds=1.0)
