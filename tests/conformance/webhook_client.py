"""WebhookService at a replica of the ledger, for tests of its laws."""

from __future__ import annotations

import asyncio
from typing import Any

from tenure.v1 import webhook_service_pb2 as pb
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint
from tests.support.fix_webhooks import Receiver
from tests.support.patience import PATIENCE_SECONDS

HERE: dict[str, Any] = {
    "allowed_networks": ("127.0.0.0/8",),
    "first_retry_seconds": 0.02,
    "longest_retry_seconds": 0.1,
    "request_timeout_seconds": 30.0,
    "lease_seconds": 60.0,
}
"""Settings of webhooks whose endpoints are on this machine and who need not wait for long."""


class WebhookClient:
    """WebhookService at a replica."""

    def __init__(self, replica: Checkpoint) -> None:
        self.replica = replica
        self.stub: Any = WebhookServiceStub(replica.channel)

    async def call(self, method: str, webhook: str = "hook", **fields: Any) -> Any:
        request = getattr(pb, f"{method}Request")(webhook=webhook, **fields)
        return await getattr(self.stub, method)(request, timeout=TIMEOUT_SECONDS)

    async def create(self, receiver: Receiver | None = None, name: str = "hook", **fields: Any) -> pb.Webhook:
        url = receiver.url if receiver is not None else "https://example.com/"
        request = pb.CreateWebhookRequest(**{"name": name, "url": url, **fields})
        made = await self.stub.CreateWebhook(request, timeout=TIMEOUT_SECONDS)
        if receiver is not None:
            receiver.secrets = [made.secret]
        value: pb.Webhook = made.webhook
        return value

    async def get(self, webhook: str = "hook") -> pb.Webhook:
        answer: pb.Webhook = (await self.call("GetWebhook", webhook)).webhook
        return answer

    async def deliveries(self, *states: Any, webhook: str = "hook") -> list[pb.WebhookDelivery]:
        return list((await self.call("ListWebhookDeliveries", webhook, states=states, page_size=500)).deliveries)

    async def until(self, holds: Any, webhook: str = "hook") -> pb.Webhook:
        """The webhook, once it is so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(result := await self.get(webhook)):
                await asyncio.sleep(0.02)
        return result

    async def finish(self, goal: str = "do it", **spec: Any) -> str:
        """A task that is claimed and succeeds."""
        task = await self.replica.create(goal=goal, **spec)
        await (await self.replica.claim(task.task_id)).end()
        return task.task_id

    async def counts_are_those_of_the_deliveries(self) -> None:
        rows = await self.replica.query(
            "select w.pending, w.dead, count(d.*) filter (where d.state = 'PENDING'),"
            " count(d.*) filter (where d.state = 'DEAD')"
            " from ledger.webhooks w left join ledger.webhook_deliveries d using (webhook_id) group by w.webhook_id"
        )
        assert all(row[:2] == row[2:] for row in rows), rows


def types(deliveries: Any, task_id: str = "") -> Any:
    return [one.type for one in deliveries if one.task_id == (task_id or one.task_id)]
