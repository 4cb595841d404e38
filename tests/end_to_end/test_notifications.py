"""Slack and e-mail on a whole installation: a person reads of a wait and answers it by the command in the message."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devstack import Stack
from tenure.cli.exit_codes import Exit
from tenure.client import Client
from tenure.v1 import webhook_service_pb2
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.fix_mail import MailServer, MakeMailServer
from tests.support.http_stub import HttpStub, Seen, page
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600), pytest.mark.faults]


@pytest.fixture
async def mails(mail_server: MakeMailServer) -> MailServer:
    return await mail_server()


@pytest.fixture
async def notifying(tmp_path: Path, mails: MailServer) -> AsyncIterator[Installation]:
    """Sends e-mail; the lease of a killed sender ends soon."""
    settings = {
        "TENURE_CHECKPOINT_SMTP_HOST": "localhost",
        "TENURE_CHECKPOINT_SMTP_PORT": str(mails.port),
        "TENURE_CHECKPOINT_SMTP_TLS": "none",
        "TENURE_CHECKPOINT_SMTP_FROM_ADDRESS": "tenure@example.com",
        "TENURE_CHECKPOINT_SMTP_TIMEOUT_SECONDS": "5",
        "TENURE_CHECKPOINT_WEBHOOK_LEASE_SECONDS": "12",
        "TENURE_CHECKPOINT_WEBHOOK_REQUEST_TIMEOUT_SECONDS": "6",
        "TENURE_CHECKPOINT_WEBHOOK_FIRST_RETRY_SECONDS": "0.1",
    }
    stack = Stack(options(tmp_path, workers=1, environment={"checkpoint": settings}))
    async with stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)


def webhooks(install: Installation, *arguments: str) -> asyncio.Task[Done]:
    return asyncio.create_task(tenure("webhooks", *arguments, address=install.stack.gateway_address))


async def until_received(install: Installation, webhook: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (
            one := (
                await install.client.webhooks.GetWebhook(webhook_service_pb2.GetWebhookRequest(webhook=webhook))
            ).webhook
        ).delivered < count:
            await asyncio.sleep(0.05)
    assert (one.pending_deliveries, one.dead_deliveries, one.problem) == (0, 0, "")


async def test_a_killed_ledger_loses_no_notification(notifying: Installation, mails: MailServer) -> None:
    """It is killed while Slack has the message and has not answered."""
    asked, healthy = asyncio.Event(), asyncio.Event()

    async def silence() -> AsyncIterator[bytes]:
        asked.set()
        await asyncio.Event().wait()
        yield b""

    async with HttpStub(lambda _: page("ok") if healthy.is_set() else silence()) as slack:
        chat = await webhooks(notifying, "create", "chat", "--slack", slack.url("/services/T0/B0/secret"))
        assert (chat.code, chat.out) == (Exit.OK, ""), chat.err
        mail = await webhooks(notifying, "create", "mail", "--email", "ann@example.com,bob@example.com")
        assert (mail.code, mail.out) == (Exit.OK, ""), mail.err
        task_id = await notifying.submit("sim-approval", "Pay <!here> & go")
        await asked.wait()
        await mails.until(1)
        ledger = notifying.stack.services["checkpoint"]
        ledger.kill()
        await notifying.died(ledger)
        healthy.set()
        await ledger.restart()
        await until_received(notifying, "chat", 1)
        await until_received(notifying, "mail", 1)

        sent, *repeats = slack.seen
        assert repeats
        assert {one.body for one in repeats} == {sent.body}
        assert len({one.message["Message-ID"] for one in mails.took}) == 1
        command = approval_in(mails.took[0].text)
        assert command == approval_in(text_of(sent))
        answered = await tenure(*shlex.split(command)[1:], "--yes", address=notifying.stack.gateway_address)
        assert answered.code == Exit.OK, answered.err
        await notifying.ended(task_id)
        await until_received(notifying, "chat", 2)
        await until_received(notifying, "mail", 2)
        ended = text_of(slack.seen[-1])
    assert ended.startswith("Succeeded: Pay &lt;!here&gt; &amp; go\n")
    assert "The answer was: " in ended
    assert mails.took[-1].message["Subject"] == "[Tenure] Succeeded: Pay <!here> & go"


def text_of(seen: Seen) -> str:
    text: str = json.loads(seen.body)["text"]
    return text


def approval_in(text: str) -> str:
    """The one command that approves."""
    (line,) = [line.strip() for line in text.splitlines() if line.strip().endswith("--approve")]
    return line


async def test_the_cli_tells_how_a_test_went(notifying: Installation, mails: MailServer) -> None:
    async with HttpStub(lambda _: page("no_service", "404 Not Found")) as slack:
        assert (await webhooks(notifying, "create", "chat", "--slack", slack.url("/services/secret"))).code == Exit.OK
        assert (await webhooks(notifying, "create", "mail", "--email", "ann@example.com")).code == Exit.OK
        sent = await webhooks(notifying, "test", "mail")
        assert (sent.code, sent.err) == (Exit.OK, "delivered: accepted by ann@example.com (250)\n")
        assert mails.took[0].message["Subject"] == "[Tenure] Test of the webhook mail"
        assert mails.took[0].message["Message-ID"] == f"<{sent.out.strip()}@example.com>"
        dead = await webhooks(notifying, "test", "chat")
        assert (dead.code, dead.err) == (
            Exit.REFUSED,
            "not delivered, and not tried again: HTTP 404: no_service\n",
        )
        mails.data = lambda _mail: "451 later"
        later = await webhooks(notifying, "test", "mail", "--json")
        assert (later.code, later.values[0]["last_status_code"]) == (Exit.NOT_YET, 451)
        listed = await webhooks(notifying, "list")
        shown = await webhooks(notifying, "get", "chat")
    assert "slack" in listed.out
    assert "ann@example.com" in listed.out
    assert "secret" not in listed.out + shown.out
    assert (await webhooks(notifying, "create", "none")).code == Exit.USAGE
    both = await webhooks(notifying, "create", "both", "https://x.example", "--email", "ann@example.com")
    assert both.code == Exit.USAGE
    wrong = await webhooks(notifying, "create", "wrong", "--email", "Ann <ann@example.com>")
    assert (wrong.code, "must be local@domain" in wrong.err) == (Exit.REFUSED, True)


async def test_e_mail_beyond_the_quota_is_reported_and_sent_later(notifying: Installation, mails: MailServer) -> None:
    """The ledger is killed while e-mail waits for the tenant's quota."""
    address = notifying.stack.gateway_address
    limits = ("tenants", "limit", "--reason", "a test", "--emails-per-hour")
    assert (await tenure(*limits, "20", address=address)).code == Exit.OK
    many = ",".join(f"p{number}@example.com" for number in range(20))
    assert (await webhooks(notifying, "create", "mail", "--email", many)).code == Exit.OK
    assert (await webhooks(notifying, "test", "mail")).code == Exit.OK
    held = await webhooks(notifying, "test", "mail", "--wait", "60s")
    assert held.code == Exit.NOT_YET
    reason = "waiting for the tenant's quota of e-mails an hour: tenure tenants get"
    assert held.err.startswith(f"not sent yet: {reason}; the next attempt is in ")

    ledger = notifying.stack.services["checkpoint"]
    ledger.kill()
    await notifying.died(ledger)
    await ledger.restart()
    shown = " ".join((await webhooks(notifying, "get", "mail")).out.split())
    assert f"held 1, {reason}" in shown
    assert "waits for the quota" in (await webhooks(notifying, "list")).out
    listed = (await webhooks(notifying, "deliveries", "mail", "--state", "pending", "--json")).values
    assert [(one["delivery_id"], one["hold_reason"]) for one in listed] == [(held.out.strip(), "TENANT_QUOTA")]
    used = " ".join((await tenure("tenants", "get", address=address)).out.split())
    assert "emails per hour 20 20 delay, free in" in used
    assert len(mails.came) == 1

    assert (await tenure(*limits, "40", address=address)).code == Exit.OK
    await until_received(notifying, "mail", 2)
    assert [len(mail.recipients) for mail in mails.took] == [20, 20]
    assert "waits" not in (await webhooks(notifying, "list")).out
