"""Deliveries: records the result of an attempt, and serves the methods that list, test, replay and discard
deliveries.
"""

from __future__ import annotations

from typing import Any, Final

import uuid_utils

from services.checkpoint.queries import fetch_all, fetch_one, fetch_row, ledger_transaction
from services.checkpoint.webhooks.event_writer import SenderLeaseKey, WebhookEvent, write_events
from services.checkpoint.webhooks.rows import NO_TASK, WEBHOOKS, DeliveryRow, WebhookRow, read_webhook
from services.checkpoint.webhooks.sending import OutgoingDelivery
from tenure.domain.errors import LimitReached, NotFound, WrongState
from tenure.domain.webhooks import (
    MAX_REPLAYED,
    TEST_EVENT,
    DeliveryState,
    DeliveryVerdict,
    PauseCode,
    WebhookResponse,
    body_of,
)
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.webhook_service import DELIVERY_STATES

# Results of attempts, written under the fence of the sender lease that made the attempt.


@ledger_transaction
async def record(
    connection: Connection,
    lease_key: SenderLeaseKey,
    delivery: OutgoingDelivery,
    response: WebhookResponse,
    verdict: DeliveryVerdict,
    most_dead: int,
) -> None:
    """Records the result of an attempt. Writes nothing when another sender lease began: that one sends again."""
    if verdict.state is DeliveryState.DELIVERED:
        written = await fetch_one(connection, WEBHOOKS.count_received, lease_key.key) is not None
    else:
        written = await _count_failure(connection, lease_key, response, verdict, most_dead)
    if written:
        await _write(connection, lease_key, delivery, response, verdict)


async def give_back(pool: Pool, lease_key: SenderLeaseKey, delivery: OutgoingDelivery) -> None:
    """Takes back the attempt of a delivery that was taken and not sent."""
    parameters = {**lease_key.key, "ordinal": delivery.ordinal}
    await in_transaction(pool, lambda connection: connection.execute(WEBHOOKS.give_back, parameters))


async def _count_failure(
    connection: Connection,
    lease_key: SenderLeaseKey,
    response: WebhookResponse,
    verdict: DeliveryVerdict,
    most_dead: int,
) -> bool:
    parameters = {
        **lease_key.key,
        "died": int(verdict.state is DeliveryState.DEAD),
        "problem": response.problem,
        "hold_seconds": float(verdict.hold_seconds),
    }
    counted = await fetch_one(connection, WEBHOOKS.count_failed, parameters)
    if counted is None:
        return False
    if verdict.pause_code:
        await _pause(
            connection,
            lease_key,
            verdict.pause_code,
            "the endpoint answered 410 Gone, it wants no more deliveries: change the endpoint, then resume the webhook",
        )
    elif verdict.state is DeliveryState.DEAD and counted[0] >= most_dead:
        await _pause(
            connection,
            lease_key,
            PauseCode.DEAD_LETTERS_FULL,
            f"there are {counted[0]:,} dead deliveries: replay or discard them, then resume the webhook",
        )
    return True


async def _write(
    connection: Connection,
    lease_key: SenderLeaseKey,
    delivery: OutgoingDelivery,
    response: WebhookResponse,
    verdict: DeliveryVerdict,
) -> None:
    parameters: dict[str, Any] = {
        "webhook_id": lease_key.webhook_id,
        "ordinal": delivery.ordinal,
        "status": response.status,
        "error": response.problem,
        "accepted_addresses": sorted({*delivery.accepted_addresses, *response.accepted_addresses}),
    }
    if verdict.state is DeliveryState.PENDING:
        parameters["wait_seconds"] = float(verdict.wait_seconds)
        await connection.execute(WEBHOOKS.put_off_delivery, parameters)
        return
    ended = await fetch_one(connection, WEBHOOKS.end_delivery, {**parameters, "state": verdict.state.value})
    assert ended is not None, "a pending delivery is deleted only with its webhook, whose row is locked"
    await connection.execute(WEBHOOKS.advance_line, {"webhook_id": lease_key.webhook_id, "line": ended[0]})


async def _pause(connection: Connection, lease_key: SenderLeaseKey, code: str, reason: str) -> None:
    parameters = {"webhook_id": lease_key.webhook_id, "code": code, "reason": reason, "actor": "checkpoint"}
    await connection.execute(WEBHOOKS.pause, parameters)


DEFAULT_DELIVERIES: Final = 50
_BEYOND_ALL: Final = 2**62


async def list_deliveries(
    pool: Pool, tenant: str, request: pb.ListWebhookDeliveriesRequest
) -> pb.ListWebhookDeliveriesResponse:
    """Returns a page, newest first. The token is the last ordinal. Raises NotFound."""
    page_size = request.page_size or DEFAULT_DELIVERIES
    async with pool_connection(pool) as connection:
        row = await read_webhook(connection, tenant, request.webhook)
        parameters = {
            "webhook_id": row.webhook_id,
            "before": int(request.page_token) if request.page_token else _BEYOND_ALL,
            "states": [DELIVERY_STATES.to_domain(state).value for state in request.states],
            "page_size": page_size + 1,
        }
        rows = [DeliveryRow(*columns) for columns in await fetch_all(connection, WEBHOOKS.deliveries, parameters)]
    page = rows[:page_size]
    token = str(page[-1].ordinal) if len(rows) > page_size else ""
    return pb.ListWebhookDeliveriesResponse(deliveries=[one.delivery() for one in page], next_page_token=token)


@ledger_transaction
async def send_test(connection: Connection, tenant: str, webhook: str, most_pending: int) -> pb.WebhookDelivery:
    """Adds a test delivery. Raises NotFound, WrongState (WEBHOOK_PAUSED) or LimitReached (TOO_MANY_DELIVERIES)."""
    delivery_id = str(uuid_utils.uuid7())
    row = await read_webhook(connection, tenant, webhook, lock=True)
    if row.paused:
        raise WrongState(f"the webhook {row.name} is paused: resume it first", reason="WEBHOOK_PAUSED")
    if row.pending >= most_pending:
        message = f"{row.pending:,} deliveries of the webhook {row.name} are pending: test it when they were sent"
        raise LimitReached(message, reason="TOO_MANY_DELIVERIES")
    now = await _now(connection)
    body = body_of(TEST_EVENT, now, {"webhook_id": row.webhook_id, "name": row.name})
    event = WebhookEvent(delivery_id, TEST_EVENT, NO_TASK + delivery_id, 0, body)
    await connection.execute(WEBHOOKS.count_written, {"webhook_id": row.webhook_id})
    await write_events(connection, row.webhook_id, [event])
    return (await _read(connection, row.webhook_id, delivery_id)).delivery()


@ledger_transaction
async def replay(
    connection: Connection, tenant: str, request: pb.ReplayWebhookDeliveriesRequest
) -> pb.ReplayWebhookDeliveriesResponse:
    """Makes dead deliveries pending again. Raises NotFound."""
    row = await read_webhook(connection, tenant, request.webhook, lock=True)
    dead_deliveries = await _read_dead(connection, row, request.delivery_id)
    if not dead_deliveries:
        return pb.ReplayWebhookDeliveriesResponse(remaining=row.dead)
    lines: dict[str, Any] = {"webhook_id": row.webhook_id, "lines": sorted({line for _, line in dead_deliveries})}
    ordinals = [ordinal for ordinal, _ in dead_deliveries]
    await connection.execute(WEBHOOKS.revive, {"webhook_id": row.webhook_id, "ordinals": ordinals})
    await connection.execute(WEBHOOKS.take_place, lines)
    await connection.execute(WEBHOOKS.set_in_line, lines)
    left = await _count(connection, WEBHOOKS.count_revived, row, len(dead_deliveries))
    return pb.ReplayWebhookDeliveriesResponse(replayed=len(dead_deliveries), remaining=left)


@ledger_transaction
async def discard(
    connection: Connection, tenant: str, request: pb.DiscardWebhookDeliveriesRequest
) -> pb.DiscardWebhookDeliveriesResponse:
    """Discards dead deliveries. Raises NotFound."""
    row = await read_webhook(connection, tenant, request.webhook, lock=True)
    dead_deliveries = await _read_dead(connection, row, request.delivery_id)
    if not dead_deliveries:
        return pb.DiscardWebhookDeliveriesResponse(remaining=row.dead)
    ordinals = [ordinal for ordinal, _ in dead_deliveries]
    await connection.execute(WEBHOOKS.discard, {"webhook_id": row.webhook_id, "ordinals": ordinals})
    left = await _count(connection, WEBHOOKS.count_discarded, row, len(dead_deliveries))
    return pb.DiscardWebhookDeliveriesResponse(discarded=len(dead_deliveries), remaining=left)


async def _read_dead(connection: Connection, row: WebhookRow, delivery_id: str) -> list[tuple[int, str]]:
    """Returns (ordinal, line) of the requested delivery, or of the oldest dead ones. Raises NotFound for a
    missing one.
    """
    if delivery_id:
        await _read(connection, row.webhook_id, delivery_id)
    parameters = {"webhook_id": row.webhook_id, "delivery_id": delivery_id, "limit": MAX_REPLAYED}
    return [(ordinal, line) for ordinal, line in await fetch_all(connection, WEBHOOKS.dead_letters, parameters)]


async def _read(connection: Connection, webhook_id: str, delivery_id: str) -> DeliveryRow:
    parameters = {"webhook_id": webhook_id, "delivery_id": delivery_id}
    row = await fetch_one(connection, WEBHOOKS.delivery, parameters)
    if row is None:
        raise NotFound(f"delivery {delivery_id} of this webhook not found", reason="DELIVERY_NOT_FOUND")
    return DeliveryRow(*row)


async def _count(connection: Connection, statement: bytes, row: WebhookRow, count: int) -> int:
    """Updates the counts and returns the number of remaining dead deliveries."""
    record = await fetch_one(connection, statement, {"webhook_id": row.webhook_id, "count": count})
    assert record is not None, "its row is locked"
    left: int = record[0]
    return left


async def _now(connection: Connection) -> Any:
    row = await fetch_row(connection, WEBHOOKS.now, {})
    return row[0]
