"""Waits for budget: a task at a cap asks for more, and a raised budget continues the tasks of its tree that want it.

Whatever raises a cap also inserts a row into `raised_budgets`, by a trigger. The duty of sub_agent_events.py takes
these rows. It locks the tasks that want budget with one statement, in the order of their ids, and the budget after
them, like a batch of commits. A wait that begins while a grant commits reads the caps under the lock of the budget:
either it sees the grant and ends at once, or the grant's row is taken after the wait has begun. So no task misses a
grant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import current_wait, lock_tasks
from services.checkpoint.entries import KINDS
from services.checkpoint.queries import SUB_AGENTS, fetch_all, fetch_one
from services.checkpoint.reads import read_task
from services.checkpoint.rows import TaskRow
from services.checkpoint.waits import waits
from tenure.domain.budget import complete_request
from tenure.domain.requeue import continues_after_raise
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.sub_agents import MIN_TIMEOUT_SECONDS
from tenure.domain.waits import APPROVE, Wait, WaitAnswer, WaitAnswerKind, WaitKind
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import seconds
from tenure.wire.task import budget_request_to_wire

_RAISED: Final = "the budget of its tree was raised"


def with_figures(draft: Draft, wait: Wait | None) -> Wait | None:
    """Returns the wait to begin. A request for budget gets the caps and the use as they are under the lock."""
    if wait is None or wait.budget_request is None:
        return wait
    metrics.count("tenure_budget_requests_total", limit=wait.budget_request.limit)
    request = complete_request(draft.budget.budget, draft.row.own_budget, wait.budget_request)
    return replace(wait, budget_request=request or wait.budget_request)


def end_budget_wait(draft: Draft, why: str) -> bool:
    """Queues a task that waits for budget, if its next model call fits into the caps now. Returns whether it did."""
    wait = current_wait(draft.row)
    if wait is None or wait.kind is not WaitKind.BUDGET or wait.budget_request is None or draft.row.ending is not None:
        return False
    if complete_request(draft.budget.budget, draft.row.own_budget, wait.budget_request) is not None:
        return False
    answer = WaitAnswer(WaitAnswerKind.DECISION, APPROVE, why)
    waits.record(draft, wait, waits.RecordedAnswer(answer, LEDGER, ""))
    draft.move(TaskState.QUEUED, Reason.BUDGET_GRANTED, why, actor=LEDGER)
    return True


async def resume_one_tree(connection: Connection) -> tuple[int, list[Draft]]:
    """Continues the tasks of one tree whose budget was raised. Returns the number of raises and the drafts."""
    raised = await fetch_one(connection, SUB_AGENTS.take_raised, {})
    if raised is None:
        return 0, []
    wanting = await fetch_all(connection, SUB_AGENTS.wanting_budget, {"root_task_id": raised[0]})
    parents = {task_id: parent for task_id, parent in wanting if parent is not None}
    if not wanting:
        return 1, []
    tasks, budgets = await lock_tasks(connection, sorted({*(row[0] for row in wanting), *parents.values()}))
    drafts = []
    for task_id, _ in wanting:
        row = tasks.get(task_id)
        if row is None:
            continue
        draft = Draft(row, budgets[row.root_task_id])
        parent = tasks.get(parents.get(task_id, ""))
        if parent is not None:
            await _begin_again(connection, draft, parent)
        elif not end_budget_wait(draft, _RAISED):
            _renew_figures(draft)
        drafts.append(draft)
    return 1, drafts


def _renew_figures(draft: Draft) -> None:
    """Shows the raised caps in a wait that goes on: the grant was too small, or the task is at its own cap."""
    wait = current_wait(draft.row)
    if wait is None or wait.budget_request is None or draft.row.ending is not None:
        return
    request = complete_request(draft.budget.budget, draft.row.own_budget, wait.budget_request)
    kept = task_pb2.Wait.FromString(draft.row.wait)
    kept.ClearField("budget_request")
    kept.MergeFrom(task_pb2.Wait(budget_request=budget_request_to_wire(request)))
    draft.row.wait, draft.moved = kept.SerializeToString(), True


async def _begin_again(connection: Connection, draft: Draft, parent: TaskRow) -> None:
    """Begins the next attempt of a sub-agent that ended at a cap, if its parent does not have the call's outcome yet.

    The parent may wait for another of its calls first: the ledger reads the sub-agents of a call only under the
    parent's lock, and closes the call then.
    """
    row = draft.row
    task = await read_task(connection, row.tenant, row.task_id)
    if parent.state in TERMINAL or parent.ending or task.spawn_call_id not in parent.open_calls:
        return
    budgets = (draft.budget.budget, row.own_budget)
    if not continues_after_raise(row.state, row.reason, budgets, row.step, row.max_steps):
        return
    request = ledger_pb2.OperatorRequest(reason=_RAISED, grant_budget=ledger_pb2.OperatorRequest.GrantBudget())
    body = ledger_pb2.EntryBody(operator_request=request)
    seconds_left = (parent.deadline_at - row.locked_at).total_seconds()
    draft.begin_attempt(max(MIN_TIMEOUT_SECONDS, min(seconds(task.spec.limits.timeout), seconds_left)))
    draft.append(KINDS["operator_request"], body.SerializeToString(), step=row.step, actor=LEDGER, by_claim=False)
    draft.move(TaskState.QUEUED, Reason.BUDGET_GRANTED, _RAISED, actor=LEDGER)
