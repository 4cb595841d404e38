"""Tasks that have not ended, by their age; and those that are held, for who looks after leases and progress."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from services.checkpoint.queries import QUERIES, fetch_all, ledger_connection
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TERMINAL, TaskState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.enums import STATES
from tenure.wire.times import seconds, timestamp

if TYPE_CHECKING:
    from tenure.runtime.postgres import Pool

DEFAULT_PAGE: Final = 50
_LIVING: Final = tuple(state.value for state in TaskState if state not in TERMINAL)
_FIRST: Final = ("-infinity", "00000000-0000-0000-0000-000000000000")


async def list_aging(pool: Pool, tenant: str, request: pb.ListAgingRequest) -> pb.ListAgingResponse:
    """A page; its last row's place is the next one's beginning. Raises InvalidRequest."""
    after, after_task_id = _read_token(request.page_token)
    limit = request.page_size or DEFAULT_PAGE
    parameters: dict[str, Any] = {"tenant": tenant, "after_task_id": after_task_id, "limit": limit}
    if request.view == task_pb2.AGING_VIEW_HELD:
        statement, parameters["idle_seconds"] = QUERIES.aging_held, seconds(request.idle)
    else:
        statement = QUERIES.aging_oldest
        parameters |= {"after": after, "states": [_state(number) for number in request.states] or list(_LIVING)}
    async with ledger_connection(pool) as connection:
        rows = await fetch_all(connection, statement, parameters)
    token = _write_token(rows[-1][-1], rows[-1][0]) if len(rows) == limit else ""
    return pb.ListAgingResponse(tasks=[_task(row) for row in rows], next_page_token=token)


def _task(row: tuple[Any, ...]) -> task_pb2.AgingTask:
    task_id, state, reason, queue, loop, owner, attempt, step, epoch, ending, *times, _place = row
    created_at, updated_at, deadline_at, next_retry_at = times
    return task_pb2.AgingTask(
        task_id=task_id,
        state=STATES.to_wire(TaskState(state)),
        reason=reason,
        queue=queue,
        loop=loop,
        owner=owner,
        attempt=attempt,
        step=step,
        epoch=epoch,
        cancel_requested=ending,
        create_time=timestamp(created_at),
        update_time=timestamp(updated_at),
        deadline_time=timestamp(deadline_at),
        next_retry_time=None if next_retry_at is None else timestamp(next_retry_at),
    )


def _state(number: int) -> str:
    try:
        state = STATES.to_domain(number)
    except ValueError:
        raise InvalidRequest(violations=[("states", "must be states")]) from None
    if state in TERMINAL:
        raise InvalidRequest(violations=[("states", f"{state} is an end")])
    return state.value


def _write_token(created_at: str, task_id: str) -> str:
    return base64.urlsafe_b64encode(f"{created_at} {task_id}".encode()).decode()


def _read_token(token: str) -> tuple[str, str]:
    """(created_at, task_id) to go on after."""
    if not token:
        return _FIRST
    try:
        created_at, _, task_id = base64.urlsafe_b64decode(token.encode()).decode().rpartition(" ")
        return created_at, str(UUID(task_id))
    except (binascii.Error, UnicodeError, ValueError):
        raise InvalidRequest(violations=[("page_token", "is none of ours")]) from None
