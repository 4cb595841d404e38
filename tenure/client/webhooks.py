"""The client's calls about webhooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.webhooks import new_secret

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.webhook_service_pb2_grpc import WebhookServiceAsyncStub

_PAGE: Final = 100
_DELIVERIES_A_PAGE: Final = 500


class WebhookCalls:
    """A part of Client, which has the stub and the patience."""

    webhooks: WebhookServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def create_webhook(self, request: pb.CreateWebhookRequest) -> pb.CreateWebhookResponse:
        """A webhook and its secret, once, also when the call had to be repeated. Raises AlreadyExists."""
        asked = pb.CreateWebhookRequest()
        asked.CopyFrom(request)
        asked.secret = request.secret or new_secret()
        answer: pb.CreateWebhookResponse = await self._patiently(self.webhooks.CreateWebhook, asked)
        return answer

    async def get_webhook(self, webhook: str) -> pb.Webhook:
        """A webhook by id or name."""
        answer: pb.GetWebhookResponse = await self._patiently(
            self.webhooks.GetWebhook, pb.GetWebhookRequest(webhook=webhook)
        )
        return answer.webhook

    async def list_webhooks(self) -> AsyncGenerator[pb.Webhook]:
        """All of them, by name."""
        asked = pb.ListWebhooksRequest(page_size=_PAGE)
        while True:
            page: pb.ListWebhooksResponse = await self._patiently(self.webhooks.ListWebhooks, asked)
            for webhook in page.webhooks:
                yield webhook
            asked.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def list_deliveries(
        self, webhook: str, states: Sequence[pb.WebhookDeliveryState.ValueType] = (), *, limit: int = 50
    ) -> AsyncGenerator[pb.WebhookDelivery]:
        """The newest first, at most `limit`."""
        asked = pb.ListWebhookDeliveriesRequest(webhook=webhook, states=states)
        while limit > 0:
            asked.page_size = min(limit, _DELIVERIES_A_PAGE)
            page: pb.ListWebhookDeliveriesResponse = await self._patiently(self.webhooks.ListWebhookDeliveries, asked)
            for delivery in page.deliveries:
                yield delivery
            limit -= len(page.deliveries)
            asked.page_token = page.next_page_token
            if not page.next_page_token:
                return

    async def rotate_secret(self, request: pb.RotateWebhookSecretRequest) -> pb.RotateWebhookSecretResponse:
        """Another secret, once, also when the call had to be repeated. Raises NotFound."""
        asked = pb.RotateWebhookSecretRequest()
        asked.CopyFrom(request)
        asked.secret = request.secret or new_secret()
        answer: pb.RotateWebhookSecretResponse = await self._patiently(self.webhooks.RotateWebhookSecret, asked)
        return answer

    async def replay_deliveries(self, webhook: str, delivery_id: str = "") -> int:
        """Sends a dead letter, or all there are, again; how many that was. Raises NotFound."""
        asked = pb.ReplayWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
        replayed = 0
        while True:
            answer: pb.ReplayWebhookDeliveriesResponse = await self._patiently(
                self.webhooks.ReplayWebhookDeliveries, asked
            )
            replayed += answer.replayed
            if delivery_id or not answer.replayed or not answer.remaining:
                return replayed

    async def discard_deliveries(self, webhook: str, delivery_id: str = "") -> int:
        """Forgets a dead letter, or all there are; how many that was. Raises NotFound."""
        asked = pb.DiscardWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
        discarded = 0
        while True:
            answer: pb.DiscardWebhookDeliveriesResponse = await self._patiently(
                self.webhooks.DiscardWebhookDeliveries, asked
            )
            discarded += answer.discarded
            if delivery_id or not answer.discarded or not answer.remaining:
                return discarded
