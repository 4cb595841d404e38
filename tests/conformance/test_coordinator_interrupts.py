"""Notices of interrupting messages: their owners get them, and all workers one that says that some may be lost."""

from __future__ import annotations

import asyncio

from tests.support.fix_coordinator import Fleet
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted_worker import ScriptedWorker


async def received(worker: ScriptedWorker, task_id: str, *, more_than: int = 0) -> int:
    """Waits for more notices with this task id, and returns their number. "": notices may be lost."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            notices = [each.interrupt.task_id for each in worker.heard if each.HasField("interrupt")]
            if notices.count(task_id) > more_than:
                return notices.count(task_id)
            await asyncio.sleep(0.02)


async def test_the_owner_gets_notices_of_interrupting_messages(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    owner, other = await fleet.worker(replica), await fleet.worker(replica, slots=0)
    task_id = await fleet.submit()
    await owner.open(await owner.next_grant())
    await fleet.interrupt(task_id)
    await received(owner, task_id)
    before = [await received(worker, "", more_than=-1) for worker in (owner, other)]
    await fleet.checkpoint.kill()
    await fleet.checkpoint.start_again()
    for worker, count in zip((owner, other), before, strict=True):
        await received(worker, "", more_than=count)
    assert not any(each.interrupt.task_id == task_id for each in other.heard)
