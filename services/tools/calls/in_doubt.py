"""ListInDoubtCalls: lists a tenant's calls in doubt, in pages, for the people who resolve them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from services.tools.statements import QUERIES
from tenure.domain.errors import InvalidRequest
from tenure.domain.tools import EffectClass
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tenure.validators.rules import CALL_ID
from tenure.wire.common import EFFECT_CLASSES, timestamp

DEFAULT_PAGE: Final = 50
_MAX_ARGUMENT_BYTES: Final = 4096
_FIRST: Final = ("-infinity", "00000000-0000-0000-0000-000000000000", "")


async def list_in_doubt(
    pool: Pool, tenant: str, request: admin_pb.ListInDoubtCallsRequest
) -> admin_pb.ListInDoubtCallsResponse:
    """Returns one page, the oldest doubt first, or the named calls that are in doubt. Raises InvalidRequest.

    The query asks for one row more than the page has, to learn whether there is a next page.
    """
    if request.calls:
        return admin_pb.ListInDoubtCallsResponse(calls=await _named(pool, tenant, request.calls))
    doubted_at, task_id, call_id = read_page_token(request.page_token)
    page_size = request.page_size or DEFAULT_PAGE
    parameters: dict[str, Any] = {
        "tenant": tenant,
        "after": doubted_at,
        "after_task_id": task_id,
        "after_call_id": call_id,
        "most_bytes": _MAX_ARGUMENT_BYTES,
        "limit": page_size + 1,
    }
    statement = QUERIES.calls_in_doubt
    if request.task_id:
        statement, parameters["task_id"] = QUERIES.calls_in_doubt_of_task, UUID(request.task_id)
    async with pool_connection(pool) as postgres:
        rows = await (await postgres.execute(statement, parameters)).fetchall()
    page = rows[:page_size]
    return admin_pb.ListInDoubtCallsResponse(
        calls=[_listed(row) for row in page], next_page_token=_token_after(page[-1]) if len(rows) > page_size else ""
    )


async def _named(
    pool: Pool, tenant: str, calls: Sequence[admin_pb.ListInDoubtCallsRequest.CallName]
) -> list[admin_pb.ListInDoubtCallsResponse.Listed]:
    parameters = {
        "tenant": tenant,
        "task_ids": [UUID(call.task_id) for call in calls],
        "call_ids": [call.call_id for call in calls],
        "most_bytes": _MAX_ARGUMENT_BYTES,
    }
    async with pool_connection(pool) as postgres:
        rows = await (await postgres.execute(QUERIES.named_calls_in_doubt, parameters)).fetchall()
    return [_listed(row) for row in rows]


def _listed(row: tuple[Any, ...]) -> admin_pb.ListInDoubtCallsResponse.Listed:
    task_id, call_id, tool, effect_class, arguments, size, call_attempt, *rest = row
    started_at, doubted_at, runner_id, instance, gone, note, acts_elsewhere = rest
    call = tool_pb2.InDoubtCall(
        task_id=str(task_id),
        call_id=call_id,
        tool=tool,
        effect_class=EFFECT_CLASSES.to_wire(EffectClass(effect_class)),
        # Truncated in bytes, maybe in the middle of a character.
        arguments_json=arguments.decode(errors="ignore" if size > len(arguments) else "replace"),
        arguments_truncated=size > len(arguments),
        call_attempt=call_attempt,
        doubt_time=timestamp(doubted_at),
        runner_id=str(runner_id or ""),
        runner_instance=instance,
        runner_gone=gone,
        note=note,
        acts_elsewhere=acts_elsewhere,
    )
    if started_at is not None:
        call.start_time.CopyFrom(timestamp(started_at))
    return admin_pb.ListInDoubtCallsResponse.Listed(call=call)


def _token_after(row: tuple[Any, ...]) -> str:
    return page_token(row[8], row[0], row[1])


def page_token(at: datetime, task_id: UUID, call_id: str) -> str:
    """Returns the token of the page after a call, in the order of a time of the calls."""
    return base64.urlsafe_b64encode(f"{at.isoformat()} {task_id} {call_id}".encode()).decode()


def read_page_token(token: str) -> tuple[str, str, str]:
    """Returns the key of the last call of the previous page. Raises InvalidRequest.

    Postgres must not see any other text: it does not read each form of a time that Python reads, and no NUL.
    """
    if not token:
        return _FIRST
    refusal = InvalidRequest(violations=[("page_token", "must be a next_page_token of this method")])
    try:
        moment, task_id, call_id = base64.b64decode(token, altchars=b"-_", validate=True).decode().split(" ")
        place = datetime.fromisoformat(moment).astimezone(UTC).isoformat(), str(UUID(task_id)), call_id
    except (binascii.Error, UnicodeError, ValueError, OverflowError):
        raise refusal from None
    if not CALL_ID.match(call_id):
        raise refusal
    return place
