"""Waits for resolutions of calls in doubt: coordinators read them, ask the tool service, and requeue settled tasks."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from services.checkpoint.commit.draft import LEDGER, Draft, waited_for
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.locked_rows import without_locked
from services.checkpoint.page_tokens import read_time
from services.checkpoint.queries import DOUBTS, fetch_all, fetch_in_transaction
from services.checkpoint.rows import TaskRow
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.in_doubt import CallInDoubt
from tenure.domain.states import Reason, TaskState
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.tool import calls_in_doubt_to_wire

# The calls in doubt that a tenant's tasks wait for, page by page, read from the waiting tasks.

DEFAULT_PAGE: Final = 50


class _DoubtPosition(NamedTuple):
    """The position of a call in the order of the list."""

    waiting_since: str
    task_id: str
    call_id: str


_FIRST: Final = _DoubtPosition("-infinity", "00000000-0000-0000-0000-000000000000", "")


async def list_calls_in_doubt(pool: Pool, tenant: str, request: pb.ListDoubtsRequest) -> pb.ListDoubtsResponse:
    """Returns calls in doubt: tasks that wait longest first, the calls of each by id as text. Raises InvalidRequest."""
    after, page_size = _read_token(request.page_token), request.page_size or DEFAULT_PAGE
    # Two rows more: the last call's task may have no further call, and one extra call shows that there is a next page.
    parameters = {
        "tenant": tenant,
        "place": after.waiting_since,
        "place_task_id": after.task_id,
        "limit": page_size + 2,
    }
    async with pool_connection(pool) as connection:
        rows = await fetch_all(connection, DOUBTS.list_doubts, parameters)
    result: list[tuple[_DoubtPosition, CallInDoubt]] = []
    for task_id, waiting_since, calls, open_calls in rows:
        for call in sorted(waited_for(calls, open_calls)):
            place = _DoubtPosition(waiting_since, task_id, call.call_id)
            if task_id != after.task_id or call.call_id > after.call_id:
                result.append((place, call))
    page = result[:page_size]
    doubts = [
        pb.ListDoubtsResponse.Doubt(task_id=place.task_id, call=calls_in_doubt_to_wire([call])[0])
        for place, call in page
    ]
    token = _write_token(page[-1][0]) if len(result) > page_size else ""
    return pb.ListDoubtsResponse(doubts=doubts, next_page_token=token)


def _write_token(place: _DoubtPosition) -> str:
    return base64.urlsafe_b64encode("|".join(place).encode()).decode()


def _read_token(token: str) -> _DoubtPosition:
    """Returns the last call of the page before."""
    if not token:
        return _FIRST
    try:
        waiting_since, task_id, call_id = base64.b64decode(token, altchars=b"-_", validate=True).decode().split("|")
        return _DoubtPosition(read_time(waiting_since), str(UUID(task_id)), call_id)
    except (binascii.Error, UnicodeError, ValueError, OverflowError):
        message = "is not a token of this service: use next_page_token of the last response"
        raise InvalidRequest(violations=[("page_token", message)]) from None


MIN_SECONDS: Final = 2.0
MAX_SECONDS: Final = 60.0
"""The longest pause between two reads of a wait: a task may wait that long after its runner settled the call."""
MAX_CALLS: Final = 64
_SETTLED: Final = "its calls are no longer in doubt: their outcomes were recorded after all"


async def list_in_doubt_waits(pool: Pool, limit: int) -> list[pb.ListDoubtWaitsResponse.DoubtWait]:
    """Returns the waits that were read longest ago, and reserves them for the caller for a while."""
    parameters = {"limit": limit, "least_seconds": MIN_SECONDS, "most_seconds": MAX_SECONDS}
    waits = []
    for task_id, tenant, epoch, texts, open_calls in await fetch_in_transaction(
        pool, DOUBTS.see_doubt_waits, parameters
    ):
        calls = calls_in_doubt_to_wire(waited_for(texts, open_calls)[:MAX_CALLS])
        waits.append(pb.ListDoubtWaitsResponse.DoubtWait(task_id=task_id, tenant=tenant, epoch=epoch, calls=calls))
    return waits


async def requeue_settled(
    pool: Pool, settled: Sequence[pb.RequeueSettledRequest.Settled]
) -> tuple[list[str], Announcement]:
    """Requeues tasks whose calls were settled. Returns their ids and the announcement. A repeat has no effect."""
    drafts = await without_locked(pool, settled, _requeue)
    return [draft.row.task_id for draft in drafts], announcement_of(drafts)


async def _requeue(connection: Connection, settled: Sequence[pb.RequeueSettledRequest.Settled]) -> list[Draft]:
    tasks, budgets = await lock_tasks(connection, sorted({one.task_id for one in settled}))
    drafts = []
    for one in settled:
        row = tasks.pop(one.task_id, None)
        if row is not None and _waits_as_seen(row, one.epoch):
            draft = Draft(row, budgets[row.root_task_id])
            draft.move(TaskState.QUEUED, Reason.CALL_RESOLVED, _SETTLED, actor=LEDGER)
            drafts.append(draft)
    await write(connection, drafts)
    return drafts


def _waits_as_seen(row: TaskRow, epoch: int) -> bool:
    """Whether the task is still in that wait: a later wait has a higher epoch. A pending ending ends the task
    instead.
    """
    waits = row.state is TaskState.WAITING_USER and row.reason == Reason.TOOL_IN_DOUBT
    return waits and row.epoch == epoch and row.ending is None
