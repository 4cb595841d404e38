"""A worker of a test: a real process, to be killed, frozen and drained, also at a named point of its loop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tenure.testing.errors import PointNotReached
from tenure.testing.gate import Gate, PendingStop
from tenure.testing.points import stop_point

if TYPE_CHECKING:
    from devstack.service_process import ServiceProcess
    from tenure.sdk.loop_thread import LoopCalls

REACH_SECONDS: Final = 60.0
REGISTRATION_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_REGISTERED: Final = re.compile(r"worker\.agents(?!.*registered later)")
"""The line of the log after which nothing more is registered."""


class WorkerHandle:
    """A worker process. `at` is a point of its loop (docs/testing.md): "after intent 1.0", "before model 2", …

    With `at` a method waits until a task of the worker is at the point. It may be called before the task gets there
    only: tasks that the test submitted wait for it (see `Tenure.go`). Raises UnknownPoint, and PointNotReached with
    what the tasks did, when the worker is not there within `timeout` seconds, or has died.
    """

    def __init__(
        self, process: ServiceProcess, gate: Gate, calls: LoopCalls, go: Callable[[], None], story: Callable[[], str]
    ) -> None:
        self._process, self._gate, self._calls, self._go, self._story = process, gate, calls, go, story

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {'runs' if self.is_running else 'has ended'}>"

    @property
    def name(self) -> str:
        """The worker's id."""
        return self._process.name

    @property
    def is_running(self) -> bool:
        """Whether the process exists; it may be frozen."""
        return self._process.exit_code is None

    async def wait_registered(self) -> None:
        """Waits until the worker has registered its agents with the test's tenant: only then do they read messages."""
        ends_at = time.monotonic() + REGISTRATION_SECONDS
        while self.is_running and time.monotonic() < ends_at and not _REGISTERED.search(self.log()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def log(self) -> str:
        """Returns the log of the process so far."""
        return self._process.log()

    def kill(self, at: str = "", *, timeout: float = REACH_SECONDS) -> None:
        """Sends SIGKILL: a crash. Returns when the process is gone."""
        self._do(self._process.kill, at, timeout)

    def kill_later(self, at: str) -> None:
        """Arms the point, and returns at once: the process is killed when it gets there.

        For tasks that the test does not submit itself: arm the point, then let the program under test submit.
        """
        self._calls.run(lambda: self._gate.stop_at(stop_point(at), self._process.kill))

    def freeze(self, at: str = "", *, timeout: float = REACH_SECONDS) -> None:
        """Sends SIGSTOP: the process keeps its connections and does nothing, as on an overloaded host, until `wake`."""
        self._do(self._process.freeze, at, timeout)

    def wake(self) -> None:
        """Lets a frozen process continue, which may believe that it still has its tasks."""
        self._go()
        self._process.wake()

    def drain(self, at: str = "", *, timeout: float = REACH_SECONDS) -> None:
        """Sends SIGTERM: the worker gives its tasks back and ends. Returns when the process is gone."""
        self._do(self._process.terminate, at, timeout)
        self._go()
        self._calls.run(lambda: self._process.ended(timeout))

    def _do(self, act: Callable[[], None], at: str, timeout: float) -> None:
        if not at:
            act()
            return
        point = stop_point(at)
        pending = self._calls.run(lambda: self._gate.stop_at(point, act))
        self._go()
        try:
            reason = self._calls.run(lambda: self._reached(pending, timeout))
        finally:
            self._calls.run(lambda: self._gate.forget(pending))
        if reason:
            raise PointNotReached(f"{self.name} was not at the point {at!r}: {reason}\n{self._story()}")

    async def _reached(self, pending: PendingStop, timeout: float) -> str:
        """Waits for the point. Returns why it was not reached, or "". Raises the error that hid where the task is."""
        ends_at = asyncio.get_running_loop().time() + timeout
        while not pending.reached.done():
            if not self.is_running:
                return f"it ended with code {self._process.exit_code}"
            if asyncio.get_running_loop().time() >= ends_at:
                return f"it did not get there within {timeout:g} s"
            await asyncio.wait({pending.reached}, timeout=_LOOK_SECONDS)
        pending.reached.result()
        return ""
