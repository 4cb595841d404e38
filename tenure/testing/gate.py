"""Stops the workers of a test at points of their loop, and lets them continue when the test says so.

A worker asks at each watched failpoint, over a Unix socket, whether it may continue. So a test that arms a point before
the task gets there never misses it, however fast the worker is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tenure.domain.errors import TenureError
from tenure.sdk.events import Event
from tenure.testing.points import WATCHED_FAILPOINTS, Position, StopPoint


class Hold:
    """Holds the tasks that the test submitted while the test does not look: between two of its calls.

    After `tenure.submit(…)` a task waits at the first point of its loop until the test's next call, which may be
    `worker.kill(at=…)`. Tasks of other clients are never held.
    """

    def __init__(self) -> None:
        self._is_on, self._submitting = False, 0
        self._task_ids: set[str] = set()
        self._changed = asyncio.Condition()

    async def passage(self, task_id: str) -> None:
        """Waits until the task may continue."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._holds(task_id))

    def _holds(self, task_id: str) -> bool:
        return self._is_on and (task_id in self._task_ids or self._submitting > 0)

    async def begin_submit(self) -> None:
        """Holds all tasks until the id of the new one is known."""
        self._is_on = True
        self._submitting += 1

    async def end_submit(self, task_id: str | None) -> None:
        """Holds the new task, if there is one."""
        async with self._changed:
            self._submitting -= 1
            if task_id is not None:
                self._task_ids.add(task_id)
            self._changed.notify_all()

    async def hold(self) -> None:
        """Holds the test's tasks at the next point of their loops."""
        self._is_on = True

    async def go(self) -> None:
        """Lets all tasks continue."""
        async with self._changed:
            self._is_on = False
            self._changed.notify_all()


class PendingStop:
    """A point at which the worker is to stop. `reached`: the id of the task that got there."""

    def __init__(self, point: StopPoint, act: Callable[[], None]) -> None:
        self.point, self.act = point, act
        self.reached: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Gate:
    """The gate of one worker. `entries` reads the ledger of a task."""

    def __init__(self, path: Path, hold: Hold, entries: Callable[[str], Awaitable[Sequence[Event]]]) -> None:
        self._path, self._hold, self._entries = path, hold, entries
        self._pending: PendingStop | None = None
        self._asking: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server

    @property
    def setting(self) -> str:
        """The value of TENURE_FAILPOINTS for the worker."""
        return ";".join(f"{name}=gate({self._path})" for name in WATCHED_FAILPOINTS)

    async def open(self) -> None:
        """Listens. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._answer, self._path)

    async def close(self) -> None:
        """Stops. A worker that still waits continues."""
        self._server.close()
        for asking in self._asking:
            asking.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def stop_at(self, point: StopPoint, act: Callable[[], None]) -> PendingStop:
        """Calls `act` in this loop when a task of the worker is at the point; replaces an earlier point."""
        self._pending = PendingStop(point, act)
        return self._pending

    async def forget(self, pending: PendingStop) -> None:
        """Withdraws a point that was not reached."""
        if self._pending is pending:
            self._pending = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asking = asyncio.current_task()
        assert asking is not None
        self._asking.add(asking)
        try:
            question = json.loads(await reader.readline())
            await self._hold.passage(question["task"])
            await self._stop(question["failpoint"], question["task"], question["step"])
            writer.write(b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            return  # the worker is gone
        finally:
            self._asking.discard(asking)
            writer.close()

    async def _stop(self, failpoint: str, task_id: str, step: int) -> None:
        pending = self._pending
        if pending is None or not task_id or not pending.point.may_be_at(failpoint):
            return
        try:
            is_there = pending.point.is_at(failpoint, Position(await self._entries(task_id), step))
        except TenureError as error:
            self._pending = None
            pending.reached.set_exception(error)
            return
        if is_there and self._pending is pending:
            self._pending = None
            await self._hold.hold()
            pending.act()
            pending.reached.set_result(task_id)
