"""WaitTask: sleeps on the ledger's stream, which tells it of the end alone, instead of asking again and again."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from services.gateway.entries import follow_entries
from services.gateway.peers import Peers, read_task
from tenure.domain.states import is_terminal
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.enums import STATES


async def wait_for_end(
    peers: Peers, task_id: str, timeout_seconds: float, stopping: asyncio.Event
) -> api.WaitTaskResponse:
    """Returns when the task has ended, the time is over or we drain: then with `ended` false, to be asked again."""
    task = await read_task(peers, task_id)
    if not _ended(task):
        await _until_closed(peers, task, timeout_seconds, stopping)
        task = await read_task(peers, task_id)
    return api.WaitTaskResponse(task=task, ended=_ended(task))


async def _until_closed(peers: Peers, task: task_pb2.Task, timeout_seconds: float, stopping: asyncio.Event) -> None:
    closed = asyncio.create_task(_closed(peers, task.task_id, task.sequence))
    drained = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({closed, drained}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if closed.done():
            closed.result()
    finally:
        closed.cancel()
        drained.cancel()
        await asyncio.gather(closed, drained, return_exceptions=True)


async def _closed(peers: Peers, task_id: str, after_sequence: int) -> None:
    async with aclosing(follow_entries(peers, task_id, after_sequence, closing_only=True)) as pages:
        async for _page in pages:
            pass


def _ended(task: task_pb2.Task) -> bool:
    return is_terminal(STATES.to_domain(task.state))
