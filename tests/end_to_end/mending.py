"""An installation that a test may break is quiet before it and whole after it."""

from __future__ import annotations

import asyncio
from typing import Final

from tenure.domain.errors import WrongState
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

POLL_SECONDS: Final = 0.05
UNDER_WAY: Final = (
    task_pb2.TASK_STATE_QUEUED,
    task_pb2.TASK_STATE_RUNNING,
    task_pb2.TASK_STATE_RETRY_SCHEDULED,
)


async def cancel_all(install: Installation) -> None:
    """Nothing that earlier tests left is under way: it could meet what this one arms, or take its slots."""
    under_way = task_pb2.TaskFilter(states=UNDER_WAY)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for task in install.client.list_tasks(under_way, limit=1000):
            try:
                await install.client.cancel(task.task_id, "another test begins")
            except WrongState:
                continue  # it has ended meanwhile
            await install.ended(task.task_id)


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
