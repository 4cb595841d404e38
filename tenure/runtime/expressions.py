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
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from tenure.domain.errors import Unavailable

LONGEST_SECONDS: Final = 30.0
"""Wall-clock time until Unavailable is raised: the machine is too busy, which is not a property of the expression."""
_LONGEST_ANSWER: Final = 1024 * 1024
_COMMAND: Final = (sys.executable, "-P", "-m", "tenure.runtime.evaluate_expressions")
_TIME: Final = frozenset({-signal.SIGPROF, -signal.SIGXCPU})
TOO_SLOW: Final = "it takes too long"
TOO_LARGE: Final = "it needs too much memory, or breaks the evaluation"


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

    async def problems(self, expressions: Sequence[str]) -> list[str]:
        """Returns the problem of each expression, with its place; "" for none. Raises Unavailable."""
        return [str(each) for each in await self._ask(["compile", expressions], len(expressions))]

    async def values(self, expressions: Sequence[str], values: Mapping[str, Any]) -> list[bool | str]:
        """Returns the value of each expression, or a clause that says why there is none. Raises Unavailable."""
        return await self._ask(["evaluate", expressions, values], len(expressions)) if expressions else []

    async def _ask(self, request: list[Any], count: int) -> list[bool | str]:
        async with self._lock:
            try:
                async with asyncio.timeout(self._longest_seconds):
                    answer = await self._exchange(json.dumps(request).encode() + b"\n")
            except TimeoutError:
                await self._end()
                raise _too_busy() from None
            except BaseException:
                await self._end()  # a later request must not read the answer of this one
                raise
        return answer if isinstance(answer, list) else [answer] * count

    async def _exchange(self, request: bytes) -> list[bool | str] | str:
        """Returns the answer, or why the child did not survive the request."""
        child = self._child or await self._begin()
        assert child.stdin is not None, "both are pipes"
        assert child.stdout is not None, "both are pipes"
        try:
            child.stdin.write(request)
            await child.stdin.drain()
            line = await child.stdout.readline()
        except ConnectionError:
            line = b""
        if line.endswith(b"\n"):
            answer: list[bool | str] = json.loads(line)
            return answer
        code = await child.wait()
        self._child = None
        return TOO_SLOW if code in _TIME else TOO_LARGE

    async def _begin(self) -> asyncio.subprocess.Process:
        """Returns a child that takes requests: what ends it later is the request."""
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=pipe, stdout=pipe, limit=_LONGEST_ANSWER, env={}
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


def _too_busy() -> Unavailable:
    message = "a rule could not be evaluated because the machine is too busy: try again later"
    return Unavailable(message, reason="RULES_UNAVAILABLE", retry_after_seconds=1.0)
