"""What the methods of WebhookService do to webhooks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import uuid_utils

from services.checkpoint.queries import fetch_all, fetch_one, in_ledger_transaction, ledger_connection
from services.checkpoint.reads import filter_parameters
from services.checkpoint.webhooks.rows import WEBHOOKS, WebhookRow, as_told, read_webhook
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound
from tenure.domain.webhooks import DEFAULT_OVERLAP_SECONDS, PauseCode
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.times import seconds
from tenure.wire.webhooks import new_secret, read_secret

if TYPE_CHECKING:
    from tenure.domain.addresses import Networks
    from tenure.runtime.postgres import Connection, Pool

DEFAULT_WEBHOOKS: Final = 50


async def create_webhook(
    pool: Pool, tenant: str, request: pb.CreateWebhookRequest, networks: Networks, most: int
) -> pb.CreateWebhookResponse:
    """Raises AlreadyExists (WEBHOOK_EXISTS), LimitReached (TOO_MANY_WEBHOOKS), InvalidRequest (address)."""
    host = urlsplit(request.url).hostname or ""
    if not networks.may_be(host):
        raise InvalidRequest(violations=[("url", f"must not lead to {host}: it is no public address")])
    filter_parameters(request.filter)
    secret = request.secret or new_secret()
    digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()

    async def work(connection: Connection) -> pb.Webhook:
        await connection.execute(WEBHOOKS.lock_tenant, {"tenant": tenant})
        if not await _is_repeat(connection, tenant, request.name, digest):
            await _check_room(connection, tenant, most)
            parameters = {
                "webhook_id": str(uuid_utils.uuid7()),
                "tenant": tenant,
                "name": request.name,
                "request_hash": digest,
                "url": request.url,
                "event_types": list(request.event_types),
                "filter": request.filter.SerializeToString(),
                "secret": read_secret(secret),
            }
            await connection.execute(WEBHOOKS.create, parameters)
        return await _told(connection, tenant, request.name)

    return pb.CreateWebhookResponse(webhook=await in_ledger_transaction(pool, work), secret=secret)


async def get_webhook(pool: Pool, tenant: str, webhook: str) -> pb.Webhook:
    """Raises NotFound."""
    async with ledger_connection(pool) as connection:
        return await _told(connection, tenant, webhook)


async def list_webhooks(pool: Pool, tenant: str, request: pb.ListWebhooksRequest) -> pb.ListWebhooksResponse:
    """A page by name. The token is the last name."""
    page_size = request.page_size or DEFAULT_WEBHOOKS
    parameters = {"tenant": tenant, "after_name": request.page_token, "page_size": page_size + 1}
    async with ledger_connection(pool) as connection:
        rows = [WebhookRow(*columns) for columns in await fetch_all(connection, WEBHOOKS.list, parameters)]
        page = rows[:page_size]
        webhooks = await as_told(connection, page)
    token = page[-1].name if len(rows) > page_size else ""
    return pb.ListWebhooksResponse(webhooks=webhooks, next_page_token=token)


async def pause_webhook(pool: Pool, tenant: str, request: pb.PauseWebhookRequest) -> pb.Webhook:
    """Raises NotFound."""

    async def work(connection: Connection) -> pb.Webhook:
        row = await read_webhook(connection, tenant, request.webhook, lock=True)
        parameters = {
            "webhook_id": row.webhook_id,
            "code": PauseCode.OPERATOR,
            "reason": request.reason,
            "actor": request.actor,
        }
        await connection.execute(WEBHOOKS.pause, parameters)
        return await _told(connection, tenant, row.webhook_id)

    return await in_ledger_transaction(pool, work)


async def resume_webhook(pool: Pool, tenant: str, webhook: str) -> pb.Webhook:
    """Raises NotFound."""

    async def work(connection: Connection) -> pb.Webhook:
        row = await read_webhook(connection, tenant, webhook, lock=True)
        await connection.execute(WEBHOOKS.resume, {"webhook_id": row.webhook_id})
        return await _told(connection, tenant, row.webhook_id)

    return await in_ledger_transaction(pool, work)


async def rotate_secret(
    pool: Pool, tenant: str, request: pb.RotateWebhookSecretRequest
) -> pb.RotateWebhookSecretResponse:
    """Raises NotFound. With the present secret nothing changes: so a repeat does not end the overlap."""
    secret = request.secret or new_secret()
    overlap_seconds = seconds(request.overlap) if request.HasField("overlap") else DEFAULT_OVERLAP_SECONDS

    async def work(connection: Connection) -> pb.Webhook:
        row = await read_webhook(connection, tenant, request.webhook, lock=True)
        if row.secret != read_secret(secret):
            parameters = {
                "webhook_id": row.webhook_id,
                "secret": read_secret(secret),
                "overlap_seconds": float(overlap_seconds),
            }
            await connection.execute(WEBHOOKS.rotate, parameters)
        return await _told(connection, tenant, row.webhook_id)

    return pb.RotateWebhookSecretResponse(webhook=await in_ledger_transaction(pool, work), secret=secret)


async def delete_webhook(pool: Pool, tenant: str, webhook: str) -> bool:
    """Whether it was there."""

    async def work(connection: Connection) -> bool:
        try:
            row = await read_webhook(connection, tenant, webhook, lock=True)
        except NotFound:
            return False
        await connection.execute(WEBHOOKS.delete, {"webhook_id": row.webhook_id})
        return True

    return await in_ledger_transaction(pool, work)


async def _told(connection: Connection, tenant: str, webhook: str) -> pb.Webhook:
    (told,) = await as_told(connection, [await read_webhook(connection, tenant, webhook)])
    return told


async def _is_repeat(connection: Connection, tenant: str, name: str, digest: bytes) -> bool:
    found = await fetch_one(connection, WEBHOOKS.find, {"tenant": tenant, "webhook_id": "", "name": name})
    if found is None:
        return False
    row = WebhookRow(*found)
    if row.request_hash != digest:
        raise AlreadyExists(
            f"there is another webhook named {name}",
            reason="WEBHOOK_EXISTS",
            metadata={"webhook_id": row.webhook_id},
        )
    return True


async def _check_room(connection: Connection, tenant: str, most: int) -> None:
    found = await fetch_one(connection, WEBHOOKS.count, {"tenant": tenant})
    assert found is not None, "a count has a row"
    if found[0] >= most:
        raise LimitReached(f"a tenant may have {most:,} webhooks", reason="TOO_MANY_WEBHOOKS")
