"""One request to a webhook, to a server that does what it likes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpcore2
import pytest

from edges.notifications.notifier import PeopleNotifier
from services.checkpoint import row_lease
from services.checkpoint.webhooks import sender_lease
from services.checkpoint.webhooks.event_writer import SenderLeaseKey
from services.checkpoint.webhooks.notifier import NO_LINKS
from services.checkpoint.webhooks.sending import OutgoingDelivery, Sender, WebhookPolicy, WebhookSettings, _beginning
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.outbound import EVERYWHERE, Networks
from tenure.domain.webhooks import FailureKind, WebhookResponse
from tenure.runtime.http.outbound_http import HttpResponse
from tenure.runtime.security.secret_box import SecretBox
from tests.support.http_stub import HttpStub, page
from tests.support.patience import CALL_SECONDS


async def send(url: Any, allowed: Sequence[str] = EVERYWHERE) -> Any:
    delivery = OutgoingDelivery(1, "d", "{}", 0, datetime.now(UTC), url, b"x" * 24, None)
    policy = WebhookPolicy(Networks(allowed), SmtpSettings(), 1, 1, SecretBox(None), PeopleNotifier)
    async with Sender(policy, CALL_SECONDS, 2) as sender:
        return await sender.send(delivery)


async def test_url_is_requested_as_written() -> None:
    async with HttpStub(lambda _: page()) as stranger:
        assert (await send(stranger.url("/hook;v=1/x;y?z=1;2"))).received
    assert [seen.target for seen in stranger.seen] == ["/hook;v=1/x;y?z=1;2"]


@pytest.mark.parametrize("headers", [{}, {"content_encoding": "br"}, {"content_length": "99"}])
async def test_status_counts_with_any_body(headers: Any) -> None:
    async with HttpStub(lambda _: page("no", "500 Oh", **headers)) as stranger:
        answer = await send(stranger.url())
    assert (answer.status, answer.problem) == (500, "HTTP 500: no")


@pytest.mark.parametrize("error", [ssl.SSLError(1, "bad record"), ConnectionResetError(), httpcore2.ReadError()])
async def test_a_connection_broken_in_the_body_keeps_its_status(error: Any) -> None:
    async def breaking() -> AsyncGenerator[Any]:
        yield b"beginning"
        raise error

    assert await _beginning(HttpResponse(200, {}, httpcore2.Response(200, content=breaking()))) == "beginning"


@pytest.mark.parametrize(("status", "failure"), [(200, FailureKind.TEMPORARY), (410, FailureKind.GONE)])
async def test_a_body_that_outlasts_the_time_keeps_its_status(status: int, failure: FailureKind) -> None:
    """The head is there at once, and the time of the request ends while its body is read."""

    async def endless() -> AsyncGenerator[Any]:
        await asyncio.Event().wait()
        yield b""

    @asynccontextmanager
    async def answered(*_: Any) -> AsyncGenerator[HttpResponse]:
        yield HttpResponse(status, {}, httpcore2.Response(status, content=endless()))

    policy = WebhookPolicy(Networks(EVERYWHERE), SmtpSettings(), 1, 1, SecretBox(None), PeopleNotifier)
    async with Sender(policy, 0.2, 2) as sender:
        sender._outgoing.send = answered  # type: ignore[method-assign,assignment]
        delivery = OutgoingDelivery(1, "d", "{}", 0, datetime.now(UTC), "https://a.example/", b"x" * 24, None)
        answer = await sender.send(delivery)
    assert (answer.status, answer.failure) == (status, failure)


async def test_ambiguous_url_is_refused() -> None:
    assert "four decimal parts" in (await send("http://2130706433/")).problem


async def test_refusal_hides_the_address() -> None:
    problem = (await send("http://localhost:1/", allowed=())).problem
    assert problem == "AddressRefused: webhooks may not reach localhost"


@pytest.mark.parametrize(("links_seconds", "sent"), [(1.0, ["d"]), (25.0, [])])
async def test_no_request_begins_that_outlives_its_lease(
    monkeypatch: pytest.MonkeyPatch, links_seconds: float, sent: list[str]
) -> None:
    """Making the links of a message waits for the ledger, and the lease of 30 s goes on meanwhile."""
    now, asked = [1000.0], list[str]()
    monkeypatch.setattr(row_lease, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def links_for(_: Any) -> Any:
        now[0] += links_seconds
        return NO_LINKS

    async def send_it(delivery: OutgoingDelivery, _: Any) -> WebhookResponse:
        asked.append(delivery.delivery_id)
        return WebhookResponse(200)

    async def recorded(*_: Any) -> None:
        """Records nothing."""

    async def give_back(*_: Any) -> None:
        given_back.append("d")

    given_back = list[str]()
    monkeypatch.setattr(sender_lease, "record", recorded)
    monkeypatch.setattr(sender_lease, "give_back", give_back)
    dependencies: Any = SimpleNamespace(
        pool=None,
        settings=WebhookSettings(),
        sender=SimpleNamespace(longest_seconds=10.0, send=send_it),
        links=SimpleNamespace(links_for=links_for),
    )
    lease = sender_lease.SenderLease(dependencies, SenderLeaseKey("w", "default", 1), taken_at=now[0])
    await lease._deliver(OutgoingDelivery(1, "d", "{}", 0, datetime.now(UTC), "", b"", None))
    assert asked == sent
    assert sorted(given_back + sent) == ["d"]
