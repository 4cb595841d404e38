"""Laws of webhooks beside slow endpoints: sender leases are shared by tenants, and end for webhooks that wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.checkpoint.webhooks import sender_lease
from services.checkpoint.webhooks.sender_lease import SenderLease
from services.checkpoint.webhooks.sending import WebhookSettings
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_webhooks import MakeReceiver, Reply

pytestmark = pytest.mark.server

LONG: Any = {**HERE, "request_timeout_seconds": 60.0, "lease_seconds": 120.0}


@pytest.fixture(autouse=True)
def few_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_lease, "MAX_LEASES", 4)
    monkeypatch.setattr(sender_lease, "LONGEST_LEASE_SECONDS", 3600.0)
    monkeypatch.setattr(sender_lease, "SHORTEST_LEASE_SECONDS", 0.0)


async def test_slow_endpoints_leave_a_sender_lease_to_another_tenant(
    checkpoint: MakeCheckpoint, webhook_receiver: MakeReceiver
) -> None:
    replica = await checkpoint(webhook=WebhookSettings(**LONG))
    slow, good = await webhook_receiver(), await webhook_receiver()
    hooks, gate = WebhookClient(replica), asyncio.Event()
    slow.answer = lambda _delivery: Reply(after=gate.wait())
    for number in range(8):
        await hooks.create(slow, f"slow{number}", event_types=["task.succeeded"])
    await hooks.finish()
    await slow.until_came(3)
    async with replica.of_tenant("other") as theirs:
        others = WebhookClient(theirs)
        await others.create(good, event_types=["task.succeeded"])
        await others.finish()
        await good.until(1)
    assert len(slow.came) == 3
    gate.set()
    await slow.until(8)


async def test_sender_lease_of_a_busy_webhook_ends_for_one_that_waits(
    checkpoint: MakeCheckpoint, webhook_receiver: MakeReceiver
) -> None:
    replica = await checkpoint(webhook=WebhookSettings(**LONG, max_requests=1))
    slow, good = await webhook_receiver(), await webhook_receiver()
    hooks, gate = WebhookClient(replica), asyncio.Event()

    async def paced() -> None:
        await gate.wait()
        await asyncio.sleep(1.0)  # so that a lease that goes on has much left when the other webhook has its lease

    slow.answer = lambda _delivery: Reply(after=paced())
    for number in range(6):
        await hooks.create(slow, f"slow{number}", event_types=["task.succeeded"])
    for _ in range(10):
        await hooks.finish()
    await slow.until_came(3)
    await hooks.create(good, "good", event_types=["task.succeeded"])
    await hooks.finish()
    gate.set()
    await good.until(1)
    assert len(slow.came) < 20, "of 66: no webhook sent all that it had before another one's lease"


async def test_delivery_that_was_not_sent_has_no_attempt(
    checkpoint: MakeCheckpoint, webhook_receiver: MakeReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = iter([False, False, True, False])
    monkeypatch.setattr(SenderLease, "_is_trusted", lambda _lease: next(trusted, True))
    replica = await checkpoint(webhook=WebhookSettings(**HERE))
    hooks, receiver = WebhookClient(replica), await webhook_receiver()
    await hooks.create(receiver, event_types=["task.succeeded"])
    await hooks.finish()
    await receiver.until(1)
    await hooks.until(lambda hook: hook.delivered == 1)
    (delivery,) = await hooks.deliveries()
    assert (delivery.attempts, len(receiver.came)) == (1, 1)
    assert next(trusted, None) is None
