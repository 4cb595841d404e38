"""What operators ask of a task, carried out under its row's lock: a next attempt, or an end that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.checkpoint.exclusive import check_no_rival
from services.checkpoint.snapshots import read_task
from tenure.domain.endings import Ending
from tenure.domain.entries import CloseOut, Requeue
from tenure.domain.errors import InvalidRequest, TenureError, WrongState
from tenure.domain.requeue import decide_requeue
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.wire.operators import operator_request_to_domain
from tenure.wire.times import seconds

if TYPE_CHECKING:
    from services.checkpoint.draft import Draft
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
    request = _read(asked)
    if isinstance(request.act, Requeue):
        await _prepare_requeue(connection, draft, request.act)
    else:
        _ask_end(draft, request.act, request.reason, actor)
    return request


def conclude(draft: Draft, request: OperatorRequest, actor: str) -> None:
    """The move that a requeue is. A close-out is a pending ending: whoever may carry it out does."""
    if isinstance(request.act, Requeue):
        draft.move(TaskState.QUEUED, Reason.OPERATOR_REQUEUE, request.reason, actor=actor)


async def _prepare_requeue(connection: Connection, draft: Draft, asked: Requeue) -> None:
    row = draft.row
    verdict = decide_requeue(row.state, draft.budget.budget, row.step, row.max_steps, asked)
    if isinstance(verdict, TenureError):
        raise verdict
    if asked.extra_tokens:
        draft.budget.raise_cap(asked.extra_tokens)
    row.max_steps += asked.extra_steps
    if verdict.begins_attempt:
        await check_no_rival(connection, row.task_id)
        task = await read_task(connection, row.tenant, row.task_id)
        draft.begin_attempt(seconds(task.spec.limits.timeout))


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
