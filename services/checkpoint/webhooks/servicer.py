"""WebhookService on the wire, as far as the ledger serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.checkpoint.webhooks import letters, store
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import webhook_service_pb2 as pb
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceServicer

if TYPE_CHECKING:
    from tenure.domain.addresses import Networks
    from tenure.runtime.postgres import Pool


class WebhookServicer(WebhookServiceServicer):
    """See protos/tenure/v1/webhook_service.proto for what each method promises."""

    def __init__(self, pool: Pool, networks: Networks, most_webhooks: int) -> None:
        self._pool, self._networks, self._most_webhooks = pool, networks, most_webhooks

    async def CreateWebhook(self, request: pb.CreateWebhookRequest, _context: Any) -> pb.CreateWebhookResponse:
        return await store.create_webhook(self._pool, current_tenant(), request, self._networks, self._most_webhooks)

    async def GetWebhook(self, request: pb.GetWebhookRequest, _context: Any) -> pb.GetWebhookResponse:
        return pb.GetWebhookResponse(webhook=await store.get_webhook(self._pool, current_tenant(), request.webhook))

    async def ListWebhooks(self, request: pb.ListWebhooksRequest, _context: Any) -> pb.ListWebhooksResponse:
        return await store.list_webhooks(self._pool, current_tenant(), request)

    async def PauseWebhook(self, request: pb.PauseWebhookRequest, _context: Any) -> pb.PauseWebhookResponse:
        return pb.PauseWebhookResponse(webhook=await store.pause_webhook(self._pool, current_tenant(), request))

    async def ResumeWebhook(self, request: pb.ResumeWebhookRequest, _context: Any) -> pb.ResumeWebhookResponse:
        resumed = await store.resume_webhook(self._pool, current_tenant(), request.webhook)
        return pb.ResumeWebhookResponse(webhook=resumed)

    async def RotateWebhookSecret(
        self, request: pb.RotateWebhookSecretRequest, _context: Any
    ) -> pb.RotateWebhookSecretResponse:
        return await store.rotate_secret(self._pool, current_tenant(), request)

    async def DeleteWebhook(self, request: pb.DeleteWebhookRequest, _context: Any) -> pb.DeleteWebhookResponse:
        deleted = await store.delete_webhook(self._pool, current_tenant(), request.webhook)
        return pb.DeleteWebhookResponse(deleted=deleted)

    async def TestWebhook(self, request: pb.TestWebhookRequest, _context: Any) -> pb.TestWebhookResponse:
        return pb.TestWebhookResponse(delivery=await letters.send_test(self._pool, current_tenant(), request.webhook))

    async def ListWebhookDeliveries(
        self, request: pb.ListWebhookDeliveriesRequest, _context: Any
    ) -> pb.ListWebhookDeliveriesResponse:
        return await letters.list_deliveries(self._pool, current_tenant(), request)

    async def ReplayWebhookDeliveries(
        self, request: pb.ReplayWebhookDeliveriesRequest, _context: Any
    ) -> pb.ReplayWebhookDeliveriesResponse:
        return await letters.replay(self._pool, current_tenant(), request)

    async def DiscardWebhookDeliveries(
        self, request: pb.DiscardWebhookDeliveriesRequest, _context: Any
    ) -> pb.DiscardWebhookDeliveriesResponse:
        return await letters.discard(self._pool, current_tenant(), request)
