"""Records proof that a runner's life is over: no effect that began under it goes on, and none can begin.

An expired TTL proves nothing: the process may be frozen or partitioned, and continue in the middle of an effect. The
proof comes from the process itself, once all that it ran in that life has ended, or from another process on the same
machine that finds the process dead. Only then is the resolution "it did not happen, run it again" safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final
from uuid import UUID

from services.tools.runners.identity import ProcessIdentity, is_dead, uptime_seconds
from services.tools.statements import QUERIES
from tenure.domain.errors import TryLater
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool, pool_connection

_log: Final = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 2.0


class FormerLives:
    """The ended lives of this process, each with its asyncio tasks that have not ended.

    `unfinished` returns the asyncio tasks that run now.
    """

    def __init__(self, unfinished: Callable[[], AbstractSet[asyncio.Task[Any]]]) -> None:
        self._unfinished = unfinished
        self._left: dict[UUID, AbstractSet[asyncio.Task[Any]]] = {}

    def add(self, runner_id: UUID) -> None:
        """Adds a life at the moment it ends: tasks that begin later belong to another life."""
        self._left[runner_id] = frozenset(self._unfinished())

    def ended(self) -> list[UUID]:
        """Returns the lives whose tasks have all ended."""
        return [runner_id for runner_id, left in self._left.items() if all(task.done() for task in left)]

    def forget(self, runner_ids: Iterable[UUID]) -> None:
        for runner_id in runner_ids:
            self._left.pop(runner_id, None)


class DeathProver:
    """Records the proven ends of this process's former lives and of dead processes on this machine."""

    def __init__(self, pool: Pool, lives: FormerLives, identity: ProcessIdentity | None) -> None:
        self._pool, self._lives, self._identity = pool, lives, identity

    async def run(self) -> None:
        """Records proofs every _EVERY_SECONDS, as a duty."""
        while True:
            try:
                await self.prove()
            except TryLater as error:
                _log.warning("could not record which runners are proven gone: %s", error)
            await rest(_EVERY_SECONDS)

    async def prove(self) -> None:
        """Records all that can be proven now. Raises TryLater."""
        async with pool_connection(self._pool) as postgres:
            await prove_former(postgres, self._lives)
            if self._identity is not None and (dead := await _dead(postgres, self._identity)):
                await _write(postgres, dead)


async def prove_former(postgres: Connection, lives: FormerLives) -> None:
    """Records the ends of this process's former lives whose tasks have all ended."""
    if ended := lives.ended():
        await _write(postgres, ended)
        lives.forget(ended)


async def _dead(postgres: Connection, here: ProcessIdentity) -> list[UUID]:
    """Returns the runners that stopped renewing and whose process, or whose machine's boot, is gone.

    The query also returns former lives of this process; their process is alive, so they are not in the result.
    """
    parameters = {
        "machine_id": here.machine_id,
        "boot_id": here.boot_id,
        "namespaces": here.namespaces,
        "uptime_seconds": uptime_seconds(),
    }
    cursor = await postgres.execute(QUERIES.unproven_runners, parameters)
    return [
        runner_id
        for runner_id, boot_id, pid, ticks in await cursor.fetchall()
        if boot_id != here.boot_id or is_dead(pid, ticks)
    ]


async def _write(postgres: Connection, runner_ids: list[UUID]) -> None:
    cursor = await postgres.execute(QUERIES.prove_ended, {"runner_ids": runner_ids})
    for (runner_id,) in await cursor.fetchall():
        _log.info("runner is proven gone", extra={"runner_id": str(runner_id)})
