"""Carries out operator requests under the task row's lock: requeue, grant, close-out, wait, resolution of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.commit.draft import conclude_with_resolution, record_resolution
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import QUERIES, RETENTION, fetch_one
from services.checkpoint.reads import read_task
from services.checkpoint.submit.create import check_no_rival
from services.checkpoint.submit.undone_history import check_not_undone
from tenure.domain.close_out import CLOSED_OUT_AS, PendingEnding, refuse_operator_wait
from tenure.domain.entries import GrantBudget, OperatorCloseOut, Requeue
from tenure.domain.errors import InvalidRequest, TenureError, WrongState
from tenure.domain.in_doubt import ResolveCall
from tenure.domain.replay import check_no_replay
from tenure.domain.requeue import RequeueDecision, decide_grant, decide_requeue
from tenure.domain.result_schema import refuse_result
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.waits import BeginWait
from tenure.wire.common import seconds
from tenure.wire.ledger import operator_request_to_domain

if TYPE_CHECKING:
    from services.checkpoint.commit.draft import Draft
    from services.checkpoint.rows import TaskRow
    from tenure.domain.budget import Budget
    from tenure.domain.entries import OperatorRequest
    from tenure.runtime.store.postgres import Connection
    from tenure.v1 import ledger_pb2


async def intervene(
    connection: Connection, draft: Draft, wanted: ledger_pb2.OperatorRequest, actor: str
) -> OperatorRequest:
    """Prepares the row for the request. The caller appends the request and then calls `conclude`.

    Raises WrongState, BudgetExhausted or InvalidRequest; then nothing has changed.
    """
    request, row = _read(wanted), draft.row
    match request.act:
        case Requeue() as again:
            verdict = decide_requeue(row.state, _budgets(draft), row.step, row.max_steps, again)
            await _prepare(connection, draft, verdict, again)
            row.max_steps += again.extra_steps
        case GrantBudget() as granted:
            verdict = decide_grant(row.state, draft.budget.budget, row.step, row.max_steps, granted)
            await _prepare(connection, draft, verdict, granted)
        case OperatorCloseOut() as end:
            _request_end(draft, end, request.reason, actor)
        case ResolveCall() as resolution:
            record_resolution(row, resolution)
        case BeginWait() as wait:
            await _plan_wait(connection, row, wait, wanted)
    return request


def conclude(draft: Draft, request: OperatorRequest, actor: str) -> None:
    """Applies the transition of a requeue, of a grant that begins an attempt, of the last resolution, or of a wait.

    A close-out has no transition here: it is a pending ending, for whichever component may carry it out. The wait of a
    RUNNING task begins when its claim is released.
    """
    if isinstance(request.act, Requeue):
        draft.move(TaskState.QUEUED, Reason.OPERATOR_REQUEUE, request.reason, actor=actor)
    if isinstance(request.act, GrantBudget) and draft.begins_attempt:
        draft.move(TaskState.QUEUED, Reason.BUDGET_GRANTED, request.reason, actor=actor)
    if isinstance(request.act, ResolveCall):
        conclude_with_resolution(draft, request, request.act, actor)
    if isinstance(request.act, BeginWait) and draft.row.state is not TaskState.RUNNING:
        draft.begin_operator_wait(actor)


async def root_of(connection: Connection, tenant: str, task_id: str) -> str:
    """Returns the root, whose budget the task uses. Raises NotFound."""
    row = await fetch_one(connection, QUERIES.root_of, {"tenant": tenant, "task_id": task_id})
    if row is None:
        raise await task_not_found(connection, tenant, task_id)
    root_task_id: str = row[0]
    return root_task_id


def _budgets(draft: Draft) -> tuple[Budget, Budget]:
    return draft.budget.budget, draft.row.own_budget


async def _prepare(
    connection: Connection, draft: Draft, verdict: RequeueDecision | TenureError, requeue: Requeue | GrantBudget
) -> None:
    row = draft.row
    if isinstance(verdict, TenureError):
        raise verdict
    if requeue.extra_tokens or requeue.extra_nano_usd:
        draft.budget.raise_caps(requeue.extra_tokens, requeue.extra_nano_usd)
        row.raise_own_caps(requeue.extra_tokens, requeue.extra_nano_usd)
    if verdict.begins_attempt:
        await check_no_rival(connection, row.task_id)
        await _check_tree_kept(connection, row)
        task = await read_task(connection, row.tenant, row.task_id)
        check_no_replay(task.spec.agent.loop, "replay the recorded task again")
        if task.undo_of:  # another undo may have its calls by now
            message = "an undo that has ended does not run again: undo the effects that it left with UndoTask"
            raise WrongState(message, reason="UNDO_ENDED", metadata={"undo_of": task.undo_of})
        await check_not_undone(connection, row.tenant, row.task_id, row.step)
        draft.begin_attempt(seconds(task.spec.limits.timeout))


async def _check_tree_kept(connection: Connection, row: TaskRow) -> None:
    """Raises WrongState (FAMILY_PRUNED). Pruning holds the budget that is locked here, so the check stays true."""
    ancestors = {row.root_task_id, row.parent_task_id or row.root_task_id} - {row.task_id}
    record = await fetch_one(connection, RETENTION.count_ancestors, {"task_ids": sorted(ancestors)})
    assert record is not None, "a count has a row"
    if record[0] < len(ancestors):
        message = "the task cannot run again because its parent or root was pruned: fork it or submit its goal again"
        raise WrongState(message, reason="FAMILY_PRUNED", metadata={"root_task_id": row.root_task_id})


async def _plan_wait(connection: Connection, row: TaskRow, wait: BeginWait, wanted: ledger_pb2.OperatorRequest) -> None:
    """Stores the request in the row, whose next transition to QUEUED begins the wait. The newest request counts."""
    refusal = refuse_operator_wait(row.state, row.ending, wait, row.locked_at.timestamp())
    if refusal is not None:
        raise refusal
    row.operator_wait = wanted.SerializeToString(deterministic=True)
    planned = {"task_id": row.task_id, "operator_wait": row.operator_wait}
    await connection.execute(QUERIES.plan_operator_wait, planned)


def _request_end(draft: Draft, close_out: OperatorCloseOut, reason: str, actor: str) -> None:
    """Records the pending ending. The newest request counts."""
    if draft.row.state in TERMINAL:
        raise WrongState(f"the task has ended as {draft.row.state}", metadata={"state": draft.row.state.value})
    refusal = refuse_result(close_out, has_schema=draft.row.has_result_schema)
    if refusal is not None:
        raise refusal
    draft.request_ending(PendingEnding(close_out.to_state, Reason.OPERATOR_CLOSE_OUT, reason, actor, close_out.result))


def _read(wanted: ledger_pb2.OperatorRequest) -> OperatorRequest:
    try:
        request = operator_request_to_domain(wanted)
    except ValueError:
        raise InvalidRequest(violations=[("operator_request", "has an unknown type")]) from None
    if isinstance(request.act, OperatorCloseOut) and request.act.to_state not in CLOSED_OUT_AS:
        allowed = ", ".join(sorted(CLOSED_OUT_AS))
        raise InvalidRequest(violations=[("operator_request.close_out.to_state", f"must be one of {allowed}")])
    return request
