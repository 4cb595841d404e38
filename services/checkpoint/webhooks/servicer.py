"""WebhookService, as far as the ledger serves it."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from urllib.parse import urlsplit

import uuid_utils

from services.checkpoint.approvals.issuing import PREFIX as LINK_PREFIX
from services.checkpoint.lists import filter_parameters
from services.checkpoint.queries import fetch_all, fetch_one, fetch_row, ledger_transaction
from services.checkpoint.webhooks import deliveries
from services.checkpoint.webhooks.rows import WEBHOOKS, WebhookRow, read_webhook, to_messages
from services.checkpoint.webhooks.sending import WebhookPolicy, secret_owner
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound, Unavailable, WrongState
from tenure.domain.outbound import is_clear_text, origin_only
from tenure.domain.webhooks import DEFAULT_OVERLAP_SECONDS, PauseCode, WebhookKind
from tenure.runtime.request_context import current_tenant
from tenure.runtime.security.secret_box import SecretBox
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.v1 import webhook_service_pb2 as pb
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceServicer
from tenure.wire.common import seconds
from tenure.wire.webhook_service import WEBHOOK_KINDS, new_secret, read_secret, with_secret

# The methods of WebhookService on webhooks.

DEFAULT_WEBHOOKS: Final = 50


async def create_webhook(
    pool: Pool, tenant: str, request: pb.CreateWebhookRequest, policy: WebhookPolicy
) -> pb.CreateWebhookResponse:
    """Creates a webhook, or returns it for a repeat.

    Raises AlreadyExists (WEBHOOK_EXISTS), LimitReached (TOO_MANY_WEBHOOKS), InvalidRequest (address) and WrongState
    (SMTP_NOT_CONFIGURED, PUBLIC_URL_NOT_CONFIGURED).
    """
    _check_target(request, policy)
    if request.answer_links and not policy.has_links:
        message = f"this installation sends no answer links: its operator has to set {LINK_PREFIX}PUBLIC_URL"
        metadata = {"setting": f"{LINK_PREFIX}PUBLIC_URL"}
        raise WrongState(message, reason="PUBLIC_URL_NOT_CONFIGURED", metadata=metadata)
    filter_parameters(current_tenant(), request.filter)
    request = with_secret(request)
    digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()

    async def work(connection: Connection) -> pb.Webhook:
        await connection.execute(WEBHOOKS.lock_tenant, {"tenant": tenant})
        if not await _is_repeat(connection, tenant, request.name, digest):
            await _check_room(connection, tenant, policy.most_webhooks)
            webhook_id, kind = str(uuid_utils.uuid7()), WEBHOOK_KINDS.to_domain(request.kind)
            secret, url = read_secret(request.secret) if request.secret else b"", request.url
            if kind is WebhookKind.SLACK:
                secret, url = url.encode(), origin_only(url)
            parameters = {
                "webhook_id": webhook_id,
                "tenant": tenant,
                "name": request.name,
                "request_hash": digest,
                "kind": kind.value,
                "url": url,
                "email_addresses": list(request.email_addresses),
                "event_types": list(request.event_types),
                "answer_links": request.answer_links,
                "filter": request.filter.SerializeToString(),
                "secret": policy.secrets.seal(secret, secret_owner(tenant, webhook_id)) if secret else b"",
            }
            await connection.execute(WEBHOOKS.create, parameters)
        return await _to_message(connection, tenant, request.name)

    return pb.CreateWebhookResponse(webhook=await in_transaction(pool, work), secret=request.secret)


async def get_webhook(pool: Pool, tenant: str, webhook: str) -> pb.Webhook:
    """Returns a webhook. Raises NotFound."""
    async with pool_connection(pool) as connection:
        return await _to_message(connection, tenant, webhook)


async def list_webhooks(pool: Pool, tenant: str, request: pb.ListWebhooksRequest) -> pb.ListWebhooksResponse:
    """Returns a page by name. The token is the last name."""
    page_size = request.page_size or DEFAULT_WEBHOOKS
    parameters = {"tenant": tenant, "after_name": request.page_token, "page_size": page_size + 1}
    async with pool_connection(pool) as connection:
        rows = [WebhookRow(*columns) for columns in await fetch_all(connection, WEBHOOKS.list, parameters)]
        page = rows[:page_size]
        webhooks = await to_messages(connection, page)
    token = page[-1].name if len(rows) > page_size else ""
    return pb.ListWebhooksResponse(webhooks=webhooks, next_page_token=token)


@ledger_transaction
async def pause_webhook(connection: Connection, tenant: str, request: pb.PauseWebhookRequest) -> pb.Webhook:
    """Pauses a webhook. Raises NotFound."""
    row = await read_webhook(connection, tenant, request.webhook, lock=True)
    parameters = {
        "webhook_id": row.webhook_id,
        "code": PauseCode.OPERATOR,
        "reason": request.reason,
        "actor": request.actor,
    }
    await connection.execute(WEBHOOKS.pause, parameters)
    return await _to_message(connection, tenant, row.webhook_id)


@ledger_transaction
async def resume_webhook(connection: Connection, tenant: str, webhook: str) -> pb.Webhook:
    """Resumes a webhook. Raises NotFound."""
    row = await read_webhook(connection, tenant, webhook, lock=True)
    await connection.execute(WEBHOOKS.resume, {"webhook_id": row.webhook_id})
    return await _to_message(connection, tenant, row.webhook_id)


async def rotate_secret(
    pool: Pool, tenant: str, request: pb.RotateWebhookSecretRequest, secrets: SecretBox
) -> pb.RotateWebhookSecretResponse:
    """Sets a new secret. Raises NotFound, and WrongState (WEBHOOK_NOT_SIGNED).

    The present secret changes nothing, so a repeat does not end the overlap. If the present secret cannot be read
    (its key is lost), there is no overlap.
    """
    secret = request.secret or new_secret()
    overlap_seconds = seconds(request.overlap) if request.HasField("overlap") else DEFAULT_OVERLAP_SECONDS

    async def work(connection: Connection) -> pb.Webhook:
        row = await read_webhook(connection, tenant, request.webhook, lock=True)
        if row.kind != WebhookKind.STANDARD:
            message = (
                f"the webhook {row.name} has no secret: only requests by the Standard Webhooks convention are signed"
            )
            raise WrongState(message, reason="WEBHOOK_NOT_SIGNED")
        owner = secret_owner(tenant, row.webhook_id)
        present = _readable(secrets, row.secret, owner)
        if present != read_secret(secret):
            parameters = {
                "webhook_id": row.webhook_id,
                "secret": secrets.seal(read_secret(secret), owner),
                "overlap_seconds": 0.0 if present is None else float(overlap_seconds),
            }
            await connection.execute(WEBHOOKS.rotate, parameters)
        return await _to_message(connection, tenant, row.webhook_id)

    return pb.RotateWebhookSecretResponse(webhook=await in_transaction(pool, work), secret=secret)


def _readable(secrets: SecretBox, stored: bytes, owner: str) -> bytes | None:
    try:
        return secrets.open(stored, owner)
    except Unavailable:
        return None


@ledger_transaction
async def delete_webhook(connection: Connection, tenant: str, webhook: str) -> bool:
    """Deletes a webhook. Returns whether it existed."""
    try:
        row = await read_webhook(connection, tenant, webhook, lock=True)
    except NotFound:
        return False
    await connection.execute(WEBHOOKS.delete, {"webhook_id": row.webhook_id})
    return True


def _check_target(request: pb.CreateWebhookRequest, policy: WebhookPolicy) -> None:
    """Raises InvalidRequest for a target that this installation does not allow, and WrongState without SMTP server."""
    if WEBHOOK_KINDS.to_domain(request.kind) is WebhookKind.EMAIL:
        policy.smtp.check_recipients(request.email_addresses)
        return
    host = urlsplit(request.url).hostname or ""
    if not policy.networks.may_reach_host(host):
        raise InvalidRequest(violations=[("url", f"must not lead to {host}: it is not a public address")])
    if is_clear_text(request.url) and request.answer_links:
        rule = "must begin with https:// where answer links are sent: who reads a link can answer"
        raise InvalidRequest(violations=[("url", rule)])
    if is_clear_text(request.url) and not policy.allow_insecure:
        rule = "must begin with https://: the operator allows http:// with TENURE_CHECKPOINT_WEBHOOK_ALLOW_INSECURE"
        raise InvalidRequest(violations=[("url", rule)])


async def _to_message(connection: Connection, tenant: str, webhook: str) -> pb.Webhook:
    (webhook_message,) = await to_messages(connection, [await read_webhook(connection, tenant, webhook)])
    return webhook_message


async def _is_repeat(connection: Connection, tenant: str, name: str, digest: bytes) -> bool:
    record = await fetch_one(connection, WEBHOOKS.find, {"tenant": tenant, "webhook_id": "", "name": name})
    if record is None:
        return False
    row = WebhookRow(*record)
    if row.request_hash != digest:
        raise AlreadyExists(
            f"there is another webhook named {name}: choose another name, or delete that webhook",
            reason="WEBHOOK_EXISTS",
            metadata={"webhook_id": row.webhook_id},
        )
    return True


async def _check_room(connection: Connection, tenant: str, most: int) -> None:
    row = await fetch_row(connection, WEBHOOKS.count, {"tenant": tenant})
    if row[0] >= most:
        message = f"the tenant has {most:,} webhooks, the most that it may have: delete one first"
        raise LimitReached(message, reason="TOO_MANY_WEBHOOKS")


class WebhookServicer(WebhookServiceServicer):
    """See protos/tenure/v1/webhook_service.proto for what each method promises."""

    def __init__(self, pool: Pool, policy: WebhookPolicy) -> None:
        self._pool, self._policy = pool, policy

    async def CreateWebhook(self, request: pb.CreateWebhookRequest, _context: Any) -> pb.CreateWebhookResponse:
        return await create_webhook(self._pool, current_tenant(), request, self._policy)

    async def GetWebhook(self, request: pb.GetWebhookRequest, _context: Any) -> pb.GetWebhookResponse:
        return pb.GetWebhookResponse(webhook=await get_webhook(self._pool, current_tenant(), request.webhook))

    async def ListWebhooks(self, request: pb.ListWebhooksRequest, _context: Any) -> pb.ListWebhooksResponse:
        return await list_webhooks(self._pool, current_tenant(), request)

    async def PauseWebhook(self, request: pb.PauseWebhookRequest, _context: Any) -> pb.PauseWebhookResponse:
        return pb.PauseWebhookResponse(webhook=await pause_webhook(self._pool, current_tenant(), request))

    async def ResumeWebhook(self, request: pb.ResumeWebhookRequest, _context: Any) -> pb.ResumeWebhookResponse:
        resumed = await resume_webhook(self._pool, current_tenant(), request.webhook)
        return pb.ResumeWebhookResponse(webhook=resumed)

    async def RotateWebhookSecret(
        self, request: pb.RotateWebhookSecretRequest, _context: Any
    ) -> pb.RotateWebhookSecretResponse:
        return await rotate_secret(self._pool, current_tenant(), request, self._policy.secrets)

    async def DeleteWebhook(self, request: pb.DeleteWebhookRequest, _context: Any) -> pb.DeleteWebhookResponse:
        deleted = await delete_webhook(self._pool, current_tenant(), request.webhook)
        return pb.DeleteWebhookResponse(deleted=deleted)

    async def TestWebhook(self, request: pb.TestWebhookRequest, _context: Any) -> pb.TestWebhookResponse:
        return pb.TestWebhookResponse(
            delivery=await deliveries.send_test(
                self._pool, current_tenant(), request.webhook, self._policy.most_pending
            )
        )

    async def ListWebhookDeliveries(
        self, request: pb.ListWebhookDeliveriesRequest, _context: Any
    ) -> pb.ListWebhookDeliveriesResponse:
        return await deliveries.list_deliveries(self._pool, current_tenant(), request)

    async def ReplayWebhookDeliveries(
        self, request: pb.ReplayWebhookDeliveriesRequest, _context: Any
    ) -> pb.ReplayWebhookDeliveriesResponse:
        return await deliveries.replay(self._pool, current_tenant(), request)

    async def DiscardWebhookDeliveries(
        self, request: pb.DiscardWebhookDeliveriesRequest, _context: Any
    ) -> pb.DiscardWebhookDeliveriesResponse:
        return await deliveries.discard(self._pool, current_tenant(), request)
