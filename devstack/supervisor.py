"""Restarts the parts of a stack that die. Only `tenure dev` uses it: tests and the demo kill parts on purpose."""

from __future__ import annotations

import asyncio
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from devstack.child_process import ChildProcess, StackError
from devstack.etcd import EtcdProcess, EtcdStartError
from devstack.postgres_cluster import EmbeddedPostgresError
from devstack.postgres_process import PostgresProcess
from devstack.stack import Stack, Tell
from tenure.domain.retry import RetryPolicy
from tenure.runtime.task_group import TaskGroup

LOOK_SECONDS: Final = 0.2
HEALTHY_SECONDS: Final = 60.0
"""A part that ran this long is restarted after the shortest wait, any other part after a growing wait."""
BACKOFF: Final = RetryPolicy(initial_seconds=0.5, factor=2.0, cap_seconds=30.0)


class Part(ABC):
    """A part of the stack that shall always run."""

    name: str
    log_path: Path

    @abstractmethod
    def death(self) -> str:
        """Returns how the part ended, or "" while it runs."""

    @abstractmethod
    async def restart(self) -> None:
        """Restarts the part and returns when it serves. Raises StackError, OSError or the error of the store."""


class ServicePart(Part):
    """A service or the simulator."""

    def __init__(self, process: ChildProcess) -> None:
        self._process, self.name, self.log_path = process, process.name, process.log_path

    def death(self) -> str:
        return death_of(self._process.exit_code)

    async def restart(self) -> None:
        await self._process.restart()


class EtcdPart(Part):
    """The embedded etcd. It keeps its data."""

    def __init__(self, process: EtcdProcess) -> None:
        self._process, self.name, self.log_path = process, "etcd", process.log_path

    def death(self) -> str:
        return death_of(self._process.exit_code)

    async def restart(self) -> None:
        self._process.start()
        await asyncio.to_thread(self._process.wait_ready)


class PostgresPart(Part):
    """The embedded Postgres. It keeps its data."""

    def __init__(self, process: PostgresProcess) -> None:
        self._process, self.name, self.log_path = process, "Postgres", process.cluster.log_path

    def death(self) -> str:
        return "" if self._process.pid is not None else "ended"

    async def restart(self) -> None:
        await self._process.start_async()


def death_of(exit_code: int | None) -> str:
    """Returns `was killed (SIGKILL)` or `ended with code 1`, or "" for None (the process runs)."""
    if exit_code is None:
        return ""
    return f"was killed ({signal.Signals(-exit_code).name})" if exit_code < 0 else f"ended with code {exit_code}"


def parts_of(stack: Stack) -> list[Part]:
    """Returns all embedded parts of the stack, the stores first."""
    parts: list[Part] = []
    if stack.postgres is not None:
        parts.append(PostgresPart(stack.postgres))
    if stack.etcd is not None:
        parts.append(EtcdPart(stack.etcd))
    return [*parts, *(ServicePart(process) for process in stack.children())]


async def keep_running(stack: Stack, tell: Tell) -> None:
    """Restarts parts until it is cancelled. `tell` gets a text for every death and every restart."""
    async with TaskGroup() as tasks:
        for part in parts_of(stack):
            tasks.create_task(_keep(part, tell))


async def _keep(part: Part, tell: Tell) -> None:
    failures = 0
    while True:
        since = time.monotonic()
        ending = await _wait_for_end(part)
        failures = failures + 1 if time.monotonic() - since < HEALTHY_SECONDS else 1
        wait_seconds = BACKOFF.ceiling_seconds(failures)
        tell(f"{part.name} {ending}; it will be restarted in {wait_seconds:g} s. Its log: {part.log_path}")
        await asyncio.sleep(wait_seconds)
        try:
            await part.restart()
        except (StackError, EtcdStartError, EmbeddedPostgresError, OSError) as error:
            tell(f"{part.name} cannot be restarted: {str(error).splitlines()[0]}")
        else:
            tell(f"{part.name} serves again")


async def _wait_for_end(part: Part) -> str:
    """Waits until the part has ended, and returns how. It polls: no event for the end exists on all systems."""
    while not (ending := part.death()):  # noqa: ASYNC110  see above
        await asyncio.sleep(LOOK_SECONDS)
    return ending
