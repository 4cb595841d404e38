"""Proof that a life of a runner is over: nothing that was begun under it goes on, and nothing will begin.

A time that ran out proves nothing: the process may be frozen, or cut off, and go on in the middle of an effect. Proof
is that the process itself says so, once everything it ran in that life has ended, or that another one on the same
machine finds it dead. "It did not happen, run it again" is safe only after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from services.tools.runners.identity import ProcessIdentity, is_dead, uptime_seconds
from services.tools.statements import QUERIES
from tenure.domain.errors import TryLater
from tenure.runtime.postgres import Connection, Pool, connection
from tenure.runtime.process import rest

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_log: Final = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 2.0


class FormerLives:
    """The lives of this process that are over, and what of each still goes on. `unfinished`: all that goes on now."""

    def __init__(self, unfinished: Callable[[], AbstractSet[asyncio.Task[Any]]]) -> None:
        self._unfinished = unfinished
        self._left: dict[UUID, AbstractSet[asyncio.Task[Any]]] = {}

    def add(self, runner_id: UUID) -> None:
        """At the very moment it ends: what begins from now on does not begin under it."""
        self._left[runner_id] = frozenset(self._unfinished())

    def ended(self) -> list[UUID]:
        """Those of which nothing goes on."""
        return [runner_id for runner_id, left in self._left.items() if all(task.done() for task in left)]

    def forget(self, runner_ids: Iterable[UUID]) -> None:
        for runner_id in runner_ids:
            self._left.pop(runner_id, None)


class DeathProver:
    """Writes down what is proven, of this process's former lives and of the dead on this machine."""

    def __init__(self, pool: Pool, lives: FormerLives, identity: ProcessIdentity | None) -> None:
        self._pool, self._lives, self._identity = pool, lives, identity

    async def run(self) -> None:
        """A duty."""
        while True:
            try:
                await self.prove()
            except TryLater as error:
                _log.warning("could not write down which runners are gone: %s", error)
            await rest(_EVERY_SECONDS)

    async def prove(self) -> None:
        """Everything that can be proven now. Raises TryLater."""
        async with connection(self._pool) as postgres:
            await prove_former(postgres, self._lives)
            if self._identity is not None and (dead := await _dead(postgres, self._identity)):
                await _write(postgres, dead)


async def prove_former(postgres: Connection, lives: FormerLives) -> None:
    """Of this process's own lives those that left nothing behind."""
    if ended := lives.ended():
        await _write(postgres, ended)
        lives.forget(ended)


async def _dead(postgres: Connection, here: ProcessIdentity) -> list[UUID]:
    """Runners that stopped renewing and whose process, or whose whole machine as it ran then, is gone. Former lives of
    this process are looked at too, and found to be of a living one.
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
