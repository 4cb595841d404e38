"""What operators ask of a task, carried out under its row's lock: a next attempt, an end that is asked for, a word on a
call in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.exclusive import check_no_rival
from services.checkpoint.missing import missing
from services.checkpoint.queries import QUERIES, RETENTION, fetch_one
from services.checkpoint.resolving import conclude_word, take_word
from services.checkpoint.snapshots import read_task
from tenure.domain.endings import Ending
from tenure.domain.entries import CloseOut, GrantBudget, Requeue
from tenure.domain.errors import InvalidRequest, TenureError, WrongState
from tenure.domain.in_doubt import ResolveCall
from tenure.domain.requeue import RequeueVerdict, decide_grant, decide_requeue
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.wire.operators import operator_request_to_domain
from tenure.wire.times import seconds

if TYPE_CHECKING:
    from services.checkpoint.draft import Draft
    from services.checkpoint.rows import TaskRow
    from tenure.domain.budget import Budget
    from tenure.domain.entries import OperatorRequest
    from tenure.runtime.postgres import Connection
    from tenure.v1 import ledger_pb2

CLOSED_OUT_AS = frozenset({TaskState.FAILED, TaskState.TIMED_OUT, TaskState.CANCELLED})
"""Ends that an operator may give a task from wherever it stands."""


async def intervene(
    connection: Connection, draft: Draft, asked: ledger_pb2.OperatorRequest, actor: str
) -> OperatorRequest:
    """Prepare the row for what is asked; `conclude` follows once the request is appended.

    Raises WrongState, BudgetExhausted, InvalidRequest; then nothing has changed.
    """
    request, row = _read(asked), draft.row
    match request.act:
        case Requeue() as again:
            verdict = decide_requeue(row.state, _budgets(draft), row.step, row.max_steps, again)
            await _prepare(connection, draft, verdict, again)
            row.max_steps += again.extra_steps
        case GrantBudget() as granted:
            verdict = decide_grant(row.state, draft.budget.standing, row.step, row.max_steps, granted)
            await _prepare(connection, draft, verdict, granted)
        case CloseOut() as end:
            _ask_end(draft, end, request.reason, actor)
        case ResolveCall() as word:
            take_word(row, word)
    return request


def conclude(draft: Draft, request: OperatorRequest, actor: str) -> None:
    """The move that a requeue is, or the last word that was waited for. A close-out is a pending ending: whoever may
    carry it out does.
    """
    if isinstance(request.act, Requeue):
        draft.move(TaskState.QUEUED, Reason.OPERATOR_REQUEUE, request.reason, actor=actor)
    if isinstance(request.act, GrantBudget) and draft.begins_attempt:
        draft.move(TaskState.QUEUED, Reason.BUDGET_GRANTED, request.reason, actor=actor)
    if isinstance(request.act, ResolveCall):
        conclude_word(draft, request, request.act, actor)


async def root_of(connection: Connection, tenant: str, task_id: str) -> str:
    """Whose budget a task draws on. Raises NotFound."""
    found = await fetch_one(connection, QUERIES.root_of, {"tenant": tenant, "task_id": task_id})
    if found is None:
        raise await missing(connection, tenant, task_id)
    root_task_id: str = found[0]
    return root_task_id


def _budgets(draft: Draft) -> tuple[Budget, Budget]:
    return draft.budget.standing, draft.row.own_budget


async def _prepare(
    connection: Connection, draft: Draft, verdict: RequeueVerdict | TenureError, asked: Requeue | GrantBudget
) -> None:
    row = draft.row
    if isinstance(verdict, TenureError):
        raise verdict
    if asked.extra_tokens or asked.extra_nano_usd:
        draft.budget.raise_caps(asked.extra_tokens, asked.extra_nano_usd)
        row.raise_own_caps(asked.extra_tokens, asked.extra_nano_usd)
    if verdict.begins_attempt:
        await check_no_rival(connection, row.task_id)
        await _check_family_kept(connection, row)
        task = await read_task(connection, row.tenant, row.task_id)
        draft.begin_attempt(seconds(task.spec.limits.timeout))


async def _check_family_kept(connection: Connection, row: TaskRow) -> None:
    """Raises WrongState (FAMILY_PRUNED). Pruning holds the budget that is locked here, so the answer stays true."""
    ancestors = {row.root_task_id, row.parent_task_id or row.root_task_id} - {row.task_id}
    found = await fetch_one(connection, RETENTION.count_ancestors, {"task_ids": sorted(ancestors)})
    assert found is not None, "a count has a row"
    if found[0] < len(ancestors):
        message = "the task's parent or root was pruned, so it cannot run again: fork it, or submit its goal anew"
        raise WrongState(message, reason="FAMILY_PRUNED", metadata={"root_task_id": row.root_task_id})


def _ask_end(draft: Draft, asked: CloseOut, reason: str, actor: str) -> None:
    """The newest request for an end is the one that counts."""
    if draft.row.state in TERMINAL:
        raise WrongState(f"the task has ended as {draft.row.state}", metadata={"state": draft.row.state.value})
    draft.ask_ending(Ending(asked.to_state, Reason.OPERATOR_CLOSE_OUT, reason, actor, asked.result))


def _read(asked: ledger_pb2.OperatorRequest) -> OperatorRequest:
    try:
        request = operator_request_to_domain(asked)
    except ValueError:
        raise InvalidRequest(violations=[("operator_request", "is not known here")]) from None
    if isinstance(request.act, CloseOut) and request.act.to_state not in CLOSED_OUT_AS:
        allowed = ", ".join(sorted(CLOSED_OUT_AS))
        raise InvalidRequest(violations=[("operator_request.close_out.to_state", f"must be one of {allowed}")])
    return request
