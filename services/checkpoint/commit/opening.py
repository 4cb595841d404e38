"""Open: raises the fence and pins the history in one transaction, then reads the history page by page.

The later read gives the same history: after the fence is raised, no older epoch can append, and entries never change.
So no lock waits for a slow reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.prepared import task_of
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import read_page
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import in_ledger_transaction, ledger_connection
from services.checkpoint.queue.offering import check_running_limit
from services.checkpoint.reads import read_task
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.admission import OpenVerdict, decide_open
from tenure.domain.errors import NotFound
from tenure.domain.states import Reason, TaskState
from tenure.runtime.failpoints import failpoint
from tenure.v1 import checkpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tenure.domain.fencing import Claims
    from tenure.runtime.postgres import Connection, Pool


class OpenResult(NamedTuple):
    """The header to send and the announcement for watchers."""

    header: pb.OpenHeader
    announcement: Announcement


async def open_task(pool: Pool, claims: Claims) -> OpenResult:
    """Raises the fence to the claim. Raises NotFound, StaleEpoch or WrongState; then nothing has changed."""
    task_id = task_of(claims)

    async def work(connection: Connection) -> OpenResult:
        await failpoint("checkpoint.before_open")
        tasks, budgets = await lock_tasks(connection, [task_id])
        row = tasks.get(task_id)
        if row is None or row.tenant != claims.tenant:
            raise await task_not_found(connection, claims.tenant, task_id)
        draft = Draft(row, budgets[row.root_task_id])
        verdict = decide_open(row.fence, claims.fence)
        if verdict is OpenVerdict.FRESH and row.ending is None:  # an Open that only ends the task needs no quota
            await check_running_limit(connection, row.tenant)
        _take_over(draft, verdict, claims)
        await write(connection, [draft])
        task = await read_task(connection, row.tenant, task_id)
        header = pb.OpenHeader(task=task, next_commit_number=row.commit_number + 1)
        return OpenResult(header, announcement_of([draft]))

    opened = await in_ledger_transaction(pool, work)
    await failpoint("checkpoint.after_open")
    return opened


def _take_over(draft: Draft, verdict: OpenVerdict, claims: Claims) -> None:
    """Settles the open model attempt of the last owner and moves the task under the new claim.

    A repeated Open of the same claim only settles the model attempt.
    """
    draft.settle_lost()
    if verdict is OpenVerdict.AGAIN:
        return
    if verdict is OpenVerdict.TAKEOVER:
        message = f"taken over from {draft.row.owner}"
        draft.move(TaskState.QUEUED, Reason.CLAIM_LOST, message, actor=LEDGER)
    draft.claim(claims.epoch, claims.claim_id, claims.holder)


async def history(pool: Pool, task_id: str, until: int) -> AsyncIterator[pb.EntryPage]:
    """Yields all entries up to the sequence `until` in pages. Holds no connection while a page is sent.

    Raises NotFound when the task is pruned meanwhile.
    """
    after = 0
    while after < until:
        async with ledger_connection(pool) as connection:
            entries = await read_page(connection, task_id, after=after, until=until)
        if not entries:
            raise NotFound(f"the task {task_id} was pruned after its end while its history was read")
        yield pb.EntryPage(entries=entries)
        after = entries[-1].sequence
