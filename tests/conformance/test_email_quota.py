"""The quota of e-mails an hour: what an SMTP server gets of a tenant, from several webhooks, replicas and lives."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from services.checkpoint.webhooks.sending import WebhookSettings
from tenure.domain.email_addresses import MAX_EMAIL_ADDRESSES
from tenure.domain.errors import InvalidRequest, LimitReached
from tenure.domain.quotas import LONGEST_HOLD_SECONDS
from tenure.runtime.request_context import as_tenant
from tenure.v1 import tenant_service_pb2 as tenants
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import unix_seconds
from tests.conformance.test_ledger_quotas import limit, window_use
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.support.fix_checkpoint import MakeCheckpoint, MakeCheckpointProcess
from tests.support.fix_mail import MailServer, MakeMailServer, smtp
from tests.support.fix_webhooks import MakeReceiver
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server

EMAILS, REFUSE, DELAY = tenants.QUOTA_KIND_EMAILS_PER_HOUR, tenants.QUOTA_POLICY_REFUSE, tenants.QUOTA_POLICY_DELAY
PENDING = pb.WEBHOOK_DELIVERY_STATE_PENDING
TEN = [f"p{number}@example.com" for number in range(10)]


@pytest.fixture
async def mails(mail_server: MakeMailServer) -> MailServer:
    return await mail_server()


@pytest.fixture
async def hooks(checkpoint: MakeCheckpoint, mails: MailServer) -> WebhookClient:
    return WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE), smtp=smtp(mails)))


async def mail_webhook(hooks: WebhookClient, name: str = "hook", addresses: Any = TEN) -> pb.Webhook:
    return await hooks.create(name=name, kind=pb.WEBHOOK_KIND_EMAIL, url="", email_addresses=addresses)


def recipients(mails: MailServer) -> int:
    """How many recipients the server was given whole messages for."""
    return sum(len(mail.recipients) for mail in mails.came)


async def until_held(hooks: WebhookClient, count: int, webhook: str = "hook") -> list[pb.WebhookDelivery]:
    """The held deliveries, once they are so many."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            held = [one for one in await hooks.deliveries(PENDING, webhook=webhook) if one.hold_reason]
            if len(held) == count:
                return held
            await asyncio.sleep(0.02)


async def test_e_mail_beyond_the_quota_waits_and_is_not_lost(hooks: WebhookClient, mails: MailServer) -> None:
    await limit(hooks.replica, EMAILS, 20, DELAY)
    await mail_webhook(hooks)
    tests = [(await hooks.call("TestWebhook")).delivery.delivery_id for _ in range(5)]
    held = await until_held(hooks, 3)
    await hooks.until(lambda hook: hook.delivered == 2)
    assert recipients(mails) == 20
    assert {(one.hold_reason, one.attempts, one.last_error) for one in held} == {("TENANT_QUOTA", 0, "")}
    waits = [unix_seconds(one.next_attempt_time) - time.time() for one in held]
    assert all(LONGEST_HOLD_SECONDS / 2 < wait <= LONGEST_HOLD_SECONDS for wait in waits), waits
    hook = await hooks.get()
    assert (hook.held_deliveries, hook.pending_deliveries, hook.dead_deliveries, hook.problem) == (3, 3, 0, "")
    use = await window_use(hooks.replica, EMAILS)
    assert (use.used, use.hard_reached, use.HasField("warn_time")) == (20, True, True)

    await limit(hooks.replica, EMAILS, 100, DELAY)
    hook = await hooks.until(lambda hook: hook.delivered == 5)
    assert (hook.held_deliveries, hook.pending_deliveries) == (0, 0)
    counts = Counter(str(mail.message["Message-ID"]) for mail in mails.took)
    assert counts == Counter(f"<{delivery_id}@example.com>" for delivery_id in tests)
    assert {one.hold_reason for one in await hooks.deliveries()} == {""}
    await hooks.counts_are_those_of_the_deliveries()


async def test_webhooks_on_two_replicas_share_the_quota(
    hooks: WebhookClient, checkpoint: MakeCheckpoint, mails: MailServer
) -> None:
    """One change is due at twelve webhooks at once."""
    await checkpoint(dsn=hooks.replica.dsn, webhook=WebhookSettings(**HERE), smtp=smtp(mails))
    await limit(hooks.replica, EMAILS, 40, DELAY)
    for number in range(12):
        await mail_webhook(hooks, f"hook-{number}", TEN[:7])
    await hooks.finish()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum([(await hooks.get(f"hook-{number}")).held_deliveries for number in range(12)]) < 7:
            await asyncio.sleep(0.05)
    await mails.until(5)
    assert recipients(mails) == 35, "five e-mails to seven: a sixth would be more than 40"


@pytest.mark.faults
async def test_a_killed_ledger_sends_no_more_than_the_quota(
    checkpoint_process: MakeCheckpointProcess, mails: MailServer
) -> None:
    """It is killed after the SMTP server has taken an e-mail, before that is recorded; then again while others wait."""
    settings = {
        "TENURE_CHECKPOINT_SMTP_HOST": "localhost",
        "TENURE_CHECKPOINT_SMTP_PORT": str(mails.port),
        "TENURE_CHECKPOINT_SMTP_TLS": "none",
        "TENURE_CHECKPOINT_SMTP_FROM_ADDRESS": "tenure@example.com",
        "TENURE_CHECKPOINT_SMTP_TIMEOUT_SECONDS": "5",
        "TENURE_CHECKPOINT_WEBHOOK_LEASE_SECONDS": "12",
        "TENURE_CHECKPOINT_WEBHOOK_REQUEST_TIMEOUT_SECONDS": "4",
    }
    first = await checkpoint_process(failpoints="checkpoint.after_delivery=1#kill9", environment=settings)
    dsn, hooks = first.replica.dsn, WebhookClient(first.replica)
    await limit(first.replica, EMAILS, 20, DELAY)
    await mail_webhook(hooks)
    await hooks.call("TestWebhook")
    await first.wait_until_dead()
    assert recipients(mails) == 10

    second = await checkpoint_process(dsn=dsn, environment=settings)
    hooks = WebhookClient(second.replica)
    for _ in range(2):
        await hooks.call("TestWebhook")
    await until_held(hooks, 2)
    await hooks.until(lambda hook: hook.delivered == 1)
    second.process.kill()
    await second.wait_until_dead()
    assert [len(mail.recipients) for mail in mails.came] == [10, 10]
    assert len({str(mail.message["Message-ID"]) for mail in mails.came}) == 1, "a repeat, which counts again"

    third = await checkpoint_process(dsn=dsn, environment=settings)
    hooks = WebhookClient(third.replica)
    assert (await window_use(third.replica, EMAILS)).used == 20
    await until_held(hooks, 2)
    assert recipients(mails) == 20
    await limit(third.replica, EMAILS, 40, DELAY)
    await hooks.until(lambda hook: hook.delivered == 3)
    assert recipients(mails) == 40


@pytest.mark.nightly
async def test_addresses_that_are_refused_count_too(hooks: WebhookClient, mails: MailServer) -> None:
    """Otherwise a tenant could try addresses at the server without limit."""
    mails.rcpt = lambda _address: "550 no such user"
    await limit(hooks.replica, EMAILS, 20, DELAY)
    await mail_webhook(hooks)
    for _ in range(3):
        await hooks.call("TestWebhook")
    await until_held(hooks, 1)
    await hooks.until(lambda hook: hook.dead_deliveries == 2)


async def test_a_retry_counts_only_the_remaining_recipients(hooks: WebhookClient, mails: MailServer) -> None:
    greylisted = {TEN[0]}

    def greylist(address: str) -> str:
        if address not in greylisted:
            return ""
        greylisted.remove(address)
        return "451 later"

    mails.rcpt = greylist
    await mail_webhook(hooks)
    await hooks.call("TestWebhook")
    await hooks.until(lambda hook: hook.delivered == 1)
    assert (await window_use(hooks.replica, EMAILS)).used == 11


@pytest.mark.nightly
async def test_quota_delays_only_e_mail_of_the_tenant(
    hooks: WebhookClient, mails: MailServer, webhook_receiver: MakeReceiver
) -> None:
    await limit(hooks.replica, EMAILS, 20, DELAY)
    await mail_webhook(hooks)
    for _ in range(3):
        await hooks.call("TestWebhook")
    await until_held(hooks, 1)
    receiver = await webhook_receiver()
    await hooks.create(receiver, "http")
    await hooks.finish()
    await receiver.until(1)
    with as_tenant("other"):
        await mail_webhook(hooks, addresses=["other@example.com"])
        await hooks.call("TestWebhook")
        await hooks.until(lambda hook: hook.delivered == 1)
    assert mails.took[-1].recipients == ("other@example.com",)


@pytest.mark.nightly
async def test_without_the_quota_all_is_sent(hooks: WebhookClient, mails: MailServer) -> None:
    await limit(hooks.replica, EMAILS, None, DELAY)
    await mail_webhook(hooks, addresses=[f"p{number}@example.com" for number in range(MAX_EMAIL_ADDRESSES)])
    for _ in range(11):
        await hooks.call("TestWebhook")
    await hooks.until(lambda hook: hook.delivered == 11)
    await limit(hooks.replica, EMAILS, 200, DELAY)
    assert (await window_use(hooks.replica, EMAILS)).used == 220, "counted before there was a quota"


async def test_unusable_quota_is_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    for most, policy in ((19, DELAY), (10**6 + 1, DELAY), (50, REFUSE)):
        with pytest.raises(InvalidRequest, match=r"quotas\[0\]"):
            await limit(replica, EMAILS, most, policy)


async def test_pending_tests_of_a_webhook_are_bounded(checkpoint: MakeCheckpoint, mails: MailServer) -> None:
    webhook = WebhookSettings(**{**HERE, "max_pending": 2})
    hooks = WebhookClient(await checkpoint(webhook=webhook, smtp=smtp(mails)))
    await limit(hooks.replica, EMAILS, 20, DELAY)
    await mail_webhook(hooks)
    for delivered in (1, 2):
        await hooks.call("TestWebhook")
        await hooks.until(lambda hook, count=delivered: hook.delivered == count)
    for _ in range(2):
        await hooks.call("TestWebhook")
    with pytest.raises(LimitReached, match="2 deliveries of the webhook hook are pending"):
        await hooks.call("TestWebhook")
