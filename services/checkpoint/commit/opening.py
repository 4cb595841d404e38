"""Open: a batch of claims raises its fences and reads the first page of each history in one transaction.

Each fence is raised under the lock of its task row. The later pages are read without a lock and are the same history:
after the fence is raised, no older epoch can append, and entries never change. So no lock waits for a slow reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.prepared import task_of
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import PAGE_BYTES, fill_first_pages, fill_page
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queue.offering import RunningLimits, lock_running_limits
from services.checkpoint.reads import snapshot
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.admission import OpenVerdict, decide_open
from tenure.domain.errors import NotFound, TenureError, WrongState
from tenure.domain.states import Reason, TaskState
from tenure.runtime.store.postgres import in_transaction, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from services.checkpoint.rows import BudgetRow, TaskRow
    from tenure.domain.fencing import Claims
    from tenure.runtime.store.postgres import Connection, Pool

FIRST_PAGES_BYTES: Final = 8 * 1024 * 1024
"""The sum of the first pages of a batch, so that the memory of a batch is bounded."""


class Opening(NamedTuple):
    """A claim to open. `joins_model_calls`: its worker joins an open call that outlives the former owner.

    `after`: the last entry that the caller has.
    """

    claims: Claims
    joins_model_calls: bool = False
    after: int = 0


class OpenResult(NamedTuple):
    """The header, and the first page of the history after `after`; `history` reads the pages after it."""

    header: pb.OpenHeader
    first: pb.OpenResponse
    after: int = 0


async def open_task(pool: Pool, opening: Opening) -> tuple[OpenResult, Announcement]:
    """Opens one task on a connection of the pool.

    Raises NotFound, StaleEpoch or WrongState; then nothing has changed.
    """

    async def work(connection: Connection) -> tuple[list[OpenResult | TenureError], Announcement]:
        return await open_batch(connection, [opening])

    (result,), announcement = await in_transaction(pool, work)
    if isinstance(result, TenureError):
        raise result
    return result, announcement


async def open_batch(
    connection: Connection, batch: Sequence[Opening]
) -> tuple[list[OpenResult | TenureError], Announcement]:
    """Returns the results in order, and what to announce once the surrounding transaction is durable.

    A refusal is a result: it changes nothing and affects no other claim. A batch must not have two claims of one task.
    """
    tasks, budgets = await lock_tasks(connection, [task_of(claims) for claims, *_ in batch])
    verdicts = [_decide(tasks.get(task_of(claims)), claims) for claims, *_ in batch]
    limits = await lock_running_limits(
        connection,
        {
            opening.claims.tenant
            for opening, verdict in zip(batch, verdicts, strict=True)
            if verdict is OpenVerdict.FRESH
        },
    )
    refusals: dict[str, TenureError] = {}
    drafts: dict[str, Draft] = {}
    for opening, verdict in zip(batch, verdicts, strict=True):
        claims = opening.claims
        task_id = task_of(claims)
        if isinstance(verdict, NotFound):
            refusals[task_id] = await task_not_found(connection, claims.tenant, task_id)
        elif isinstance(verdict, TenureError):
            refusals[task_id] = verdict
        elif refusal := _in_line(tasks[task_id]) or _over_limit(tasks[task_id], verdict, limits):
            refusals[task_id] = refusal
        else:
            drafts[task_id] = _draft(tasks[task_id], budgets, verdict, opening)
    await write(connection, list(drafts.values()))
    afters = {task_of(claims): after for claims, _, after in batch}
    opened = await _read(connection, list(drafts.values()), afters)
    results = [refusals.get(task_id) or opened[task_id] for task_id in (task_of(claims) for claims, *_ in batch)]
    return results, announcement_of(list(drafts.values()))


def _decide(row: TaskRow | None, claims: Claims) -> OpenVerdict | TenureError:
    if row is None or row.tenant != claims.tenant:
        return NotFound(f"task {task_of(claims)} not found")
    try:
        return decide_open(row.fence, claims.fence)
    except TenureError as refusal:
        return refusal


def _in_line(row: TaskRow) -> TenureError | None:
    """Refuses a claim from before the task was requeued into the line of its source, which has not admitted it yet."""
    return WrongState("the task waits in the line of its source", reason="IN_LINE") if row.in_line else None


def _over_limit(row: TaskRow, verdict: OpenVerdict, limits: RunningLimits) -> TenureError | None:
    """Counts the task against the tenant's quota of running tasks, or returns why it has no room.

    An Open that only ends the task needs no quota.
    """
    return limits.take(row.tenant) if verdict is OpenVerdict.FRESH and row.ending is None else None


def _draft(row: TaskRow, budgets: dict[str, BudgetRow], verdict: OpenVerdict, opening: Opening) -> Draft:
    draft = Draft(row, budgets[row.root_task_id])
    _put_under_claim(draft, verdict, opening)
    return draft


def _put_under_claim(draft: Draft, verdict: OpenVerdict, opening: Opening) -> None:
    """Puts the task under the new claim. Settles the model attempt that the last owner left open, unless the new owner
    joins its call.

    A repeated Open of the same claim only settles the model attempt.
    """
    claims = opening.claims
    if not (opening.joins_model_calls and draft.row.model_outlives):
        draft.settle_lost()
    if verdict is OpenVerdict.AGAIN:
        return
    if verdict is OpenVerdict.TAKEOVER:
        message = f"taken over from {draft.row.owner}"
        draft.move(TaskState.QUEUED, Reason.CLAIM_LOST, message, actor=LEDGER)
    draft.claim(claims.epoch, claims.claim_id, claims.holder)


async def _read(connection: Connection, drafts: Sequence[Draft], afters: Mapping[str, int]) -> dict[str, OpenResult]:
    """Reads the first pages as the transaction leaves them."""
    if not drafts:
        return {}
    rows = {draft.row.task_id: draft.row for draft in drafts}
    pages = {task_id: pb.OpenResponse() for task_id in rows}
    await fill_first_pages(
        connection,
        {task_id: response.page for task_id, response in pages.items()},
        afters,
        {task_id: row.sequence for task_id, row in rows.items()},
        page_bytes=min(PAGE_BYTES, FIRST_PAGES_BYTES // len(rows)),
    )
    return {
        task_id: OpenResult(_header(draft), pages[task_id], afters[task_id])
        for task_id, draft in zip(rows, drafts, strict=True)
    }


def _header(draft: Draft) -> pb.OpenHeader:
    task = snapshot(draft.row, draft.budget.budget)
    return pb.OpenHeader(task=task, next_commit_number=draft.row.commit_number + 1)


async def history(pool: Pool, opened: OpenResult) -> AsyncIterator[pb.OpenResponse]:
    """Yields the pages after the first one. Holds no connection while a page is sent.

    Raises NotFound when the task is pruned meanwhile.
    """
    task_id, until = opened.header.task.task_id, opened.header.task.sequence
    first = opened.first.page.entries
    after = first[-1].sequence if first else opened.after
    while after < until:
        response = pb.OpenResponse()
        async with pool_connection(pool) as connection:
            await fill_page(connection, response.page, task_id, after=after, until=until)
        if not response.page.entries:
            raise NotFound(f"the task {task_id} was pruned after its end while its history was read")
        after = response.page.entries[-1].sequence
        yield response
