"""One run of a function, from its beginning to its end or until it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final, NamedTuple, Self

from services.worker.control.requests import Raised, Request, Returned
from services.worker.control.work import FunctionWork, encode
from tenure.control import Function
from tenure.control.failures import failure_of
from tenure.domain.task import ControlWork

_log: Final = logging.getLogger(__name__)
STOP_SECONDS: Final = 1.0
"""So long a function may tidy up after its cancellation. Its task is left then, whether it has ended or not."""

_overdue: Final[set[asyncio.Task[None]]] = set()
"""Functions that do not end when they are cancelled. What they ask for from now on is refused."""


class WorkIsOver(BaseException):
    """Ends a function that swallowed its cancellation and asks for more. No Exception: it would swallow that too."""


class Asked(NamedTuple):
    """A request, and where its answer goes."""

    request: Request
    answer: asyncio.Future[Any]


class FunctionRun:
    """`async with` it: the function begins, and is cancelled at the end, if it is not done by then."""

    def __init__(self, function: Function, control: ControlWork, task_id: str) -> None:
        self._function, self._control = function, control
        self._work = FunctionWork(task_id, self._ask)
        self._asked: asyncio.Queue[Asked] = asyncio.Queue(maxsize=1)
        self._is_over = False
        self._running: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run(), name=f"function {self._control.function}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        self._running.cancel()
        await asyncio.wait({self._running}, timeout=STOP_SECONDS)
        if not self._running.done():
            _log.warning("a function goes on though it was cancelled", extra={"function": self._control.function})
            _overdue.add(self._running)
            self._running.add_done_callback(_overdue.discard)

    async def next(self) -> Asked:
        """What the function asks for next."""
        return await self._asked.get()

    async def _ask(self, request: Request) -> Any:
        if self._is_over:
            raise WorkIsOver
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._asked.put(Asked(request, answer))
        return await answer

    async def _run(self) -> None:
        try:
            given = json.loads(self._control.input_json or "null")
            result = await self._function(self._work, given)
            result_json = encode(result, "what the function returns")
            await self._work.settle()
            last: Request = Returned(self._work.steps, result_json)
        except asyncio.CancelledError as error:
            if self._is_over:
                raise
            last = Raised(failure_of(error))  # something in the function was cancelled, by itself
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a backend's own function raises
            _log.warning("a function failed", exc_info=True, extra={"function": self._control.function})
            last = Raised(failure_of(error))
        except WorkIsOver:
            return
        await self._ask(last)
