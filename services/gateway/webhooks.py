"""WebhookService handed through to the ledger. Every call may be repeated: secrets that nobody gave are made here."""

from __future__ import annotations

from typing import Any

from services.gateway.peers import Peers, patiently
from services.gateway.tasks import caller
from tenure.v1 import webhook_service_pb2 as pb
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceServicer
from tenure.wire.webhooks import new_secret


class WebhookServicer(WebhookServiceServicer):
    """Adds patience with replicas that restart, and who asks."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def CreateWebhook(self, request: pb.CreateWebhookRequest, _context: Any) -> pb.CreateWebhookResponse:
        """A repeat behind this call has the same secret, and so the same payload."""
        asked = pb.CreateWebhookRequest()
        asked.CopyFrom(request)
        asked.secret = request.secret or new_secret()
        return await patiently(lambda: self._peers.webhooks.CreateWebhook(asked))

    async def GetWebhook(self, request: pb.GetWebhookRequest, _context: Any) -> pb.GetWebhookResponse:
        return await patiently(lambda: self._peers.webhooks.GetWebhook(request))

    async def ListWebhooks(self, request: pb.ListWebhooksRequest, _context: Any) -> pb.ListWebhooksResponse:
        return await patiently(lambda: self._peers.webhooks.ListWebhooks(request))

    async def PauseWebhook(self, request: pb.PauseWebhookRequest, _context: Any) -> pb.PauseWebhookResponse:
        asked = pb.PauseWebhookRequest(webhook=request.webhook, reason=request.reason, actor=caller())
        return await patiently(lambda: self._peers.webhooks.PauseWebhook(asked))

    async def ResumeWebhook(self, request: pb.ResumeWebhookRequest, _context: Any) -> pb.ResumeWebhookResponse:
        return await patiently(lambda: self._peers.webhooks.ResumeWebhook(request))

    async def RotateWebhookSecret(
        self, request: pb.RotateWebhookSecretRequest, _context: Any
    ) -> pb.RotateWebhookSecretResponse:
        asked = pb.RotateWebhookSecretRequest()
        asked.CopyFrom(request)
        asked.secret = request.secret or new_secret()
        return await patiently(lambda: self._peers.webhooks.RotateWebhookSecret(asked))

    async def DeleteWebhook(self, request: pb.DeleteWebhookRequest, _context: Any) -> pb.DeleteWebhookResponse:
        """A repeat behind this call may find that the first one did it."""
        return await patiently(lambda: self._peers.webhooks.DeleteWebhook(request))

    async def TestWebhook(self, request: pb.TestWebhookRequest, _context: Any) -> pb.TestWebhookResponse:
        """A repeat behind this call may send a second event: harmless, and told apart by its id."""
        return await patiently(lambda: self._peers.webhooks.TestWebhook(request))

    async def ListWebhookDeliveries(
        self, request: pb.ListWebhookDeliveriesRequest, _context: Any
    ) -> pb.ListWebhookDeliveriesResponse:
        return await patiently(lambda: self._peers.webhooks.ListWebhookDeliveries(request))

    async def ReplayWebhookDeliveries(
        self, request: pb.ReplayWebhookDeliveriesRequest, _context: Any
    ) -> pb.ReplayWebhookDeliveriesResponse:
        """A repeat behind this call finds fewer to replay; the number is then of the rest."""
        return await patiently(lambda: self._peers.webhooks.ReplayWebhookDeliveries(request))

    async def DiscardWebhookDeliveries(
        self, request: pb.DiscardWebhookDeliveriesRequest, _context: Any
    ) -> pb.DiscardWebhookDeliveriesResponse:
        return await patiently(lambda: self._peers.webhooks.DiscardWebhookDeliveries(request))
