"""The rows of webhooks and deliveries, in the database and as messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from services.checkpoint.columns import Unlisted, Uuid, Xid, select_list
from services.checkpoint.queries import fetch_all, fetch_one
from tenure.domain.errors import NotFound
from tenure.domain.outbound import origin_only
from tenure.domain.webhooks import GapReason, WebhookKind
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.codec import writer
from tenure.wire.common import timestamp
from tenure.wire.webhook_service import GAP_REASONS

GAPS_SHOWN: Final = 10
NO_TASK: Final = "webhook/"
"""The prefix of the lines of deliveries that concern no task."""


class WebhookRow(NamedTuple):
    """A webhook. `old_secret`: None after the overlap."""

    webhook_id: Uuid
    tenant: str
    name: str
    request_hash: bytes
    url: str
    event_types: list[str]
    filter: bytes
    secret: bytes
    old_secret_until: datetime | None
    paused: bool
    pause_code: str
    pause_reason: str
    pause_actor: str
    feed_id: Uuid
    xid: Xid
    position: int
    read_at: datetime
    lease_number: int
    pending: int
    dead: int
    delivered: int
    last_delivered_at: datetime | None
    last_failed_at: datetime | None
    problem: str
    created_at: datetime
    updated_at: datetime
    kind: str
    email_addresses: list[str]
    answer_links: bool
    old_secret: Unlisted[bytes | None]

    def webhook(self, gaps: Sequence[pb.WebhookGap], held: int) -> pb.Webhook:
        """Returns the webhook as callers see it, without its secrets."""
        shown = self._replace(
            url=origin_only(self.url) if self.kind == WebhookKind.SLACK else self.url,
            old_secret_until=None if self.old_secret is None else self.old_secret_until,
        )
        message = _webhook_to_wire(shown)
        message.gaps.extend(gaps)
        message.held_deliveries = held
        return message


_webhook_to_wire = writer(
    WebhookRow,
    pb.Webhook,
    rename={
        "pending": "pending_deliveries",
        "dead": "dead_deliveries",
        "old_secret_until": "old_secret_until_time",
    },
    skip="tenant request_hash secret old_secret feed_id xid position read_at lease_number gaps held_deliveries",
)


class DeliveryRow(NamedTuple):
    """A delivery."""

    ordinal: int
    delivery_id: Uuid
    event_type: str
    line: str
    sequence: int
    state: str
    attempts: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_status: int
    last_error: str
    created_at: datetime
    ended_at: datetime | None
    accepted_addresses: list[str]
    hold_reason: str

    def delivery(self) -> pb.WebhookDelivery:
        """Returns the delivery as callers see it."""
        return _delivery_to_wire(self._replace(line="") if self.line.startswith(NO_TASK) else self)


_delivery_to_wire = writer(
    DeliveryRow,
    pb.WebhookDelivery,
    rename={"line": "task_id", "last_status": "last_status_code"},
    skip="ordinal",
)


WEBHOOKS: Final = Queries.load(
    "services.checkpoint",
    "sql/webhooks.sql",
    {"webhook": select_list(WebhookRow, "w"), "delivery": select_list(DeliveryRow, "d")},
)


async def read_webhook(connection: Connection, tenant: str, id_or_name: str, *, lock: bool = False) -> WebhookRow:
    """Returns a webhook by id or name. Raises NotFound, also for another tenant's webhook."""
    statement = WEBHOOKS.lock if lock else WEBHOOKS.find
    row = await fetch_one(connection, statement, {"tenant": tenant, **_named(id_or_name)})
    if row is None:
        raise NotFound(f"webhook {id_or_name} not found", reason="WEBHOOK_NOT_FOUND")
    return WebhookRow(*row)


async def to_messages(connection: Connection, rows: Sequence[WebhookRow]) -> list[pb.Webhook]:
    """Returns webhooks with their gaps and the number of their held deliveries."""
    webhook_ids = [row.webhook_id for row in rows]
    parameters = {"webhook_ids": webhook_ids, "limit": GAPS_SHOWN}
    held = dict(await _held(connection, webhook_ids))
    gaps: dict[str, list[pb.WebhookGap]] = {row.webhook_id: [] for row in rows}
    for webhook_id, reason, from_at, to_at, from_cursor, to_cursor in await fetch_all(
        connection, WEBHOOKS.gaps, parameters
    ):
        gaps[webhook_id].append(gap_message(GapReason(reason), from_at, to_at, from_cursor, to_cursor))
    return [row.webhook(gaps[row.webhook_id], held.get(row.webhook_id, 0)) for row in rows]


async def _held(connection: Connection, webhook_ids: Sequence[str]) -> list[tuple[str, int]]:
    rows = await fetch_all(connection, WEBHOOKS.held, {"webhook_ids": webhook_ids})
    return [(webhook_id, count) for webhook_id, count in rows]


def gap_message(
    reason: GapReason, from_at: datetime, to_at: datetime, from_cursor: str, to_cursor: str
) -> pb.WebhookGap:
    """Returns a gap as callers and endpoints see it."""
    return pb.WebhookGap(
        reason=GAP_REASONS.to_wire(reason),
        from_time=timestamp(from_at),
        to_time=timestamp(to_at),
        from_cursor=from_cursor,
        to_cursor=to_cursor,
    )


def _named(id_or_name: str) -> dict[str, str]:
    """Returns the parameters for an id or a name. By the contract a name is never a UUID."""
    try:
        return {"webhook_id": str(UUID(id_or_name)), "name": ""}
    except ValueError:
        return {"webhook_id": "", "name": id_or_name}
