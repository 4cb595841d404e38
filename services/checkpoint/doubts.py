"""The calls in doubt that a tenant's tasks wait for a word on, page by page, found by what waits."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from services.checkpoint.queries import DOUBTS, fetch_all, ledger_connection
from services.checkpoint.resolving import waited_for
from tenure.domain.errors import InvalidRequest
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.in_doubt import calls_in_doubt_to_wire

if TYPE_CHECKING:
    from tenure.domain.in_doubt import CallInDoubt
    from tenure.runtime.postgres import Pool

DEFAULT_PAGE: Final = 50


class _Place(NamedTuple):
    """A call in the order of the list."""

    waiting_since: str
    task_id: str
    call_id: str


_FIRST: Final = _Place("-infinity", "00000000-0000-0000-0000-000000000000", "")


async def list_doubts(pool: Pool, tenant: str, request: pb.ListDoubtsRequest) -> pb.ListDoubtsResponse:
    """The tasks that wait longest first, the calls of each by their ids as texts. Raises InvalidRequest."""
    after, page_size = _read_token(request.page_token), request.page_size or DEFAULT_PAGE
    # The task of the last call may have no more; and one call more than asked for tells whether there are more.
    asked = {"tenant": tenant, "place": after.waiting_since, "place_task_id": after.task_id, "limit": page_size + 2}
    async with ledger_connection(pool) as connection:
        rows = await fetch_all(connection, DOUBTS.list_doubts, asked)
    found: list[tuple[_Place, CallInDoubt]] = []
    for task_id, waiting_since, calls, open_calls in rows:
        for call in sorted(waited_for(calls, open_calls)):
            place = _Place(waiting_since, task_id, call.call_id)
            if task_id != after.task_id or call.call_id > after.call_id:
                found.append((place, call))
    page = found[:page_size]
    doubts = [
        pb.ListDoubtsResponse.Doubt(task_id=place.task_id, call=calls_in_doubt_to_wire([call])[0])
        for place, call in page
    ]
    token = _write_token(page[-1][0]) if len(found) > page_size else ""
    return pb.ListDoubtsResponse(doubts=doubts, next_page_token=token)


def _write_token(place: _Place) -> str:
    return base64.urlsafe_b64encode("|".join(place).encode()).decode()


def _read_token(token: str) -> _Place:
    """The last call of the page before."""
    if not token:
        return _FIRST
    try:
        waiting_since, task_id, call_id = base64.urlsafe_b64decode(token.encode()).decode().split("|")
        return _Place(str(datetime.fromisoformat(waiting_since)), str(UUID(task_id)), call_id)
    except (binascii.Error, UnicodeError, ValueError):
        raise InvalidRequest(violations=[("page_token", "is none of ours")]) from None
