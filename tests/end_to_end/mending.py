"""An installation that a test may break is quiet before it and whole after it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import psycopg

from tenure.client import Client
from tenure.domain.errors import WrongState
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

POLL_SECONDS: Final = 0.05
UNDER_WAY: Final = "select tenant, task_id::text from ledger.tasks where ended_at is null"


async def cancel_all(install: Installation) -> None:
    """No task of an earlier test is left, of any tenant: it could meet what this test arms, or take its slots."""
    dsn = install.stack.postgres_dsn
    async with asyncio.timeout(PATIENCE_SECONDS), await psycopg.AsyncConnection.connect(dsn, autocommit=True) as ledger:
        while left := await (await ledger.execute(UNDER_WAY)).fetchall():
            for tenant, task_id in left:
                async with Client(install.stack.gateway_address, tenant=tenant) as client:
                    with suppress(WrongState):  # it has ended meanwhile
                        await client.cancel(task_id, "another test begins")
                    await client.wait(task_id, PATIENCE_SECONDS)


async def mend(install: Installation, *, everything: bool) -> None:
    """Starts what is down, or `everything`; returns when all of it serves and every worker is there to be used."""
    stack = install.stack
    if stack.postgres is not None:
        await stack.postgres.start_async()
    if stack.etcd is not None and stack.etcd.exit_code is not None:
        stack.etcd.start()
        await asyncio.to_thread(stack.etcd.wait_ready)
    for service in stack.services.values():
        if everything:
            service.kill()
        if service.exit_code is not None:
            service.start()
    await asyncio.gather(*(service.wait_ready() for service in stack.services.values()))
    await _all_attached(install)


async def _all_attached(install: Installation) -> None:
    names = {worker.name for worker in install.stack.workers}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while names - {one.worker_id for one in (await install.client.workers()).workers if not one.draining}:
            await asyncio.sleep(POLL_SECONDS)
