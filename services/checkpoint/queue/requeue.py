"""Returns the tasks of lost claims to the queue, if they still run under exactly that claim."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from services.checkpoint.commit.close_out import ask, carry_out_ending, what_follows
from services.checkpoint.commit.draft import LEDGER, Draft, clean
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import KINDS
from services.checkpoint.halt_rules import Pause, after_halt
from services.checkpoint.locked_rows import without_locked
from services.checkpoint.queries import QUERIES, QUEUE, fetch_all
from services.checkpoint.rows import TaskRow
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.close_out import WITHOUT_CRASH, PendingEnding, ending_of_lost_claim
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import LeaseLostPolicy
from tenure.domain.timeouts import REASONS, Phase
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import Connection, Pool
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.task import reported_call_to_domain

_PHASES: Final = {REASONS[phase]: phase for phase in (Phase.START, Phase.PROGRESS)}
"""Phases that coordinators time, by the reason with which they end a claim."""

_TASKS_A_TRANSACTION: Final = 128
_HALT_ENTRIES: Final = 2000
"""How many of the newest entries are searched for halts: each halt has a few."""
STEERED_SECONDS: Final = 10.0
"""How long a transferred task is offered only as the operator wants, before any worker may have it."""


async def requeue_lost(pool: Pool, lost: Sequence[pb.RequeueLostRequest.Lost]) -> tuple[list[str], Announcement]:
    """Requeues tasks of lost claims, or ends them by their policy. Returns their ids. A repeat has no effect."""
    put_back: list[str] = []
    announcement = Announcement()
    by_task = {one.task_id: one for one in lost}
    task_ids = sorted(by_task)
    for start in range(0, len(task_ids), _TASKS_A_TRANSACTION):
        part = [by_task[task_id] for task_id in task_ids[start : start + _TASKS_A_TRANSACTION]]
        await failpoint("checkpoint.before_requeue")
        drafts = await without_locked(pool, part, _requeue)
        await failpoint("checkpoint.after_requeue")
        put_back += [draft.row.task_id for draft in drafts]
        announcement.add(announcement_of(drafts))
    return put_back, announcement


async def _requeue(connection: Connection, lost: Sequence[pb.RequeueLostRequest.Lost]) -> list[Draft]:
    tasks, budgets = await lock_tasks(connection, [one.task_id for one in lost])
    halted = [tasks[one.task_id] for one in lost if one.reason == Reason.WORKER_HALTED and one.task_id in tasks]
    halts = await _count_halts(connection, halted)
    drafts, unopened = [], []
    for one in lost:
        row = tasks.get(one.task_id)
        if row is None:
            continue
        draft = Draft(row, budgets[row.root_task_id])
        if row.holds and row.claim_id == one.claim_id:
            if one.reason == Reason.OPERATOR_TRANSFER:
                await _steer(connection, one, row.owner)
            _put_back(draft, one, halts[one.task_id])
        elif _is_unopened(row, one.claim_id):
            unopened.append(one.task_id)
            if one.reason != Reason.START_TIMEOUT:
                continue
            _leave_unopened(draft, one)
        else:
            continue
        await carry_out_ending(connection, draft)
        drafts += [draft] if draft.has_work else []
    await write(connection, drafts)
    if unopened:
        await connection.execute(QUEUE.offer_again, {"task_ids": unopened})
    return drafts


async def _steer(connection: Connection, lost: pb.RequeueLostRequest.Lost, owner: str) -> None:
    """For a short time offers the task to the operator's worker, or at least not to the worker that had it."""
    steer = {"task_id": lost.task_id, "steered_from": clean(owner), "steered_to": clean(lost.to_worker_id)}
    await connection.execute(QUERIES.steer, {**steer, "seconds": STEERED_SECONDS})


def _is_unopened(row: TaskRow, claim_id: str) -> bool:
    """Whether the task was granted for this claim and is still queued because the worker did not open it."""
    waits = row.state is TaskState.QUEUED and row.ending is None
    return waits and row.granted_claim == claim_id and row.claim_id != claim_id


def _leave_unopened(draft: Draft, lost: pb.RequeueLostRequest.Lost) -> None:
    """Applies the start timeout to a task that its worker never opened. Such a task is still queued."""
    move = what_follows(draft, Phase.START, lost.message)
    if move is not None:
        ask(draft, move)


async def _count_halts(connection: Connection, rows: Sequence[TaskRow]) -> Counter[str]:
    """Returns how often workers halted each task since its newest step."""
    counted: Counter[str] = Counter()
    if not rows:
        return counted
    parameters = {
        "task_ids": [row.task_id for row in rows],
        "afters": [row.sequence - _HALT_ENTRIES for row in rows],
        "steps": [row.step for row in rows],
        "kind": KINDS["transition"],
    }
    for task_id, body in await fetch_all(connection, QUEUE.transitions_of_step, parameters):
        counted[task_id] += ledger_pb2.EntryBody.FromString(body).transition.reason == Reason.WORKER_HALTED
    return counted


def _put_back(draft: Draft, lost: pb.RequeueLostRequest.Lost, halts: int) -> None:
    row = draft.row
    if lost.reason not in WITHOUT_CRASH:
        row.count_death(row.owner)
    draft.reported = reported_call_to_domain(lost.heard_call) if lost.HasField("heard_call") else None
    if lost.HasField("lease_end"):
        draft.lease_end = lost.lease_end
        draft.lease_end.worker_id, draft.lease_end.epoch = row.owner, row.epoch
    if not row.model_outlives:
        draft.settle_lost()
    if row.ending is None:
        _decide(draft, lost, halts)
    if row.state is TaskState.RUNNING:
        draft.move(TaskState.QUEUED, lost.reason, lost.message, actor=lost.actor or LEDGER)


def _decide(draft: Draft, lost: pb.RequeueLostRequest.Lost, halts: int) -> None:
    """Applies the policy of the phase timeout, of lost leases, or of halts; without an ending the task returns to the
    queue.
    """
    row = draft.row
    if lost.reason == Reason.WORKER_HALTED:
        match after_halt(halts, lost.message, random.random()):
            case Pause(seconds=pause_seconds):
                draft.move(
                    TaskState.RETRY_SCHEDULED,
                    lost.reason,
                    lost.message,
                    actor=LEDGER,
                    retry_delay_seconds=pause_seconds,
                )
            case PendingEnding() as halted:
                draft.request_ending(halted)
        return
    phase = _PHASES.get(lost.reason)
    move = None if phase is None else what_follows(draft, phase, lost.message)
    if move is not None and not row.died.is_crash_loop:
        ask(draft, move)
        return
    ending = ending_of_lost_claim(LeaseLostPolicy(row.on_lease_lost), row.died, lost.reason, lost.message)
    if ending is not None:
        draft.request_ending(ending)
