"""Starts again what dies by itself. Only `tenure dev` wants this: tests and the demo kill on purpose."""

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
"""Who lived this long is started again at once; who did not, after a wait that grows."""
BACKOFF: Final = RetryPolicy(initial_seconds=0.5, factor=2.0, cap_seconds=30.0)


class Part(ABC):
    """Something that is to run all the time."""

    name: str
    log_path: Path

    @abstractmethod
    def death(self) -> str:
        """How it ended; empty while it runs."""

    @abstractmethod
    async def start_again(self) -> None:
        """Returns when it serves. Raises StackError, OSError or its own kind of failure."""


class ServicePart(Part):
    """A service, or the simulator."""

    def __init__(self, process: ChildProcess) -> None:
        self._process, self.name, self.log_path = process, process.name, process.log_path

    def death(self) -> str:
        return death_of(self._process.exit_code)

    async def start_again(self) -> None:
        await self._process.restart()


class EtcdPart(Part):
    """The embedded etcd, over its data."""

    def __init__(self, process: EtcdProcess) -> None:
        self._process, self.name, self.log_path = process, "etcd", process.log_path

    def death(self) -> str:
        return death_of(self._process.exit_code)

    async def start_again(self) -> None:
        self._process.start()
        await asyncio.to_thread(self._process.wait_ready)


class PostgresPart(Part):
    """The embedded Postgres, over its data."""

    def __init__(self, process: PostgresProcess) -> None:
        self._process, self.name, self.log_path = process, "Postgres", process.cluster.log_path

    def death(self) -> str:
        return "" if self._process.pid is not None else "ended"

    async def start_again(self) -> None:
        await self._process.start_async()


def death_of(exit_code: int | None) -> str:
    """`was killed (SIGKILL)`, `ended with code 1`; empty while it runs."""
    if exit_code is None:
        return ""
    return f"was killed ({signal.Signals(-exit_code).name})" if exit_code < 0 else f"ended with code {exit_code}"


def parts_of(stack: Stack) -> list[Part]:
    """Everything that runs here, the stores first."""
    parts: list[Part] = []
    if stack.postgres is not None:
        parts.append(PostgresPart(stack.postgres))
    if stack.etcd is not None:
        parts.append(EtcdPart(stack.etcd))
    return [*parts, *(ServicePart(process) for process in stack.children())]


async def keep_running(stack: Stack, tell: Tell) -> None:
    """Runs until it is cancelled; `tell` hears of every death and of every return."""
    async with TaskGroup() as keepers:
        for part in parts_of(stack):
            keepers.create_task(_keep(part, tell))


async def _keep(part: Part, tell: Tell) -> None:
    failures = 0
    while True:
        since = time.monotonic()
        how = await _died(part)
        failures = failures + 1 if time.monotonic() - since < HEALTHY_SECONDS else 1
        wait_seconds = BACKOFF.ceiling_seconds(failures)
        tell(f"{part.name} {how}; it is started again in {wait_seconds:g} s. Its log: {part.log_path}")
        await asyncio.sleep(wait_seconds)
        try:
            await part.start_again()
        except (StackError, EtcdStartError, EmbeddedPostgresError, OSError) as error:
            tell(f"{part.name} does not come back: {str(error).splitlines()[0]}")
        else:
            tell(f"{part.name} is back")


async def _died(part: Part) -> str:
    """How it ended, once it has. There is no event of a process's end that all systems have: it is looked at."""
    while not (how := part.death()):  # noqa: ASYNC110  see above
        await asyncio.sleep(LOOK_SECONDS)
    return how
