"""One attempt to send a delivery. Requests are bounded in time and in bytes read, and never redirected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Self

from standardwebhooks import Webhook

from services.checkpoint.webhooks.notifier import NO_LINKS, LinksByAddressee, Notifier, OpenNotifier
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.approvals import AnswerLink, body_with_links, without_tokens
from tenure.domain.errors import Unavailable
from tenure.domain.outbound import Networks, UrlRefused, parse_url
from tenure.domain.retry import RetryPolicy
from tenure.domain.texts import one_line
from tenure.domain.webhooks import RETRY, WebhookKind, WebhookResponse, http_failure, retry_after_seconds
from tenure.runtime.http.outbound_http import FAILURES, CheckedNetworkBackend, Outgoing
from tenure.runtime.http.outbound_http import HttpResponse as Response
from tenure.runtime.observability import metrics
from tenure.runtime.release import VERSION
from tenure.runtime.security.secret_box import SecretBox
from tenure.runtime.settings import setting

# Settings. They may differ between replicas during a rolling update.

PREFIX: Final = "TENURE_CHECKPOINT_WEBHOOK_"


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """TENURE_CHECKPOINT_WEBHOOK_…"""

    max_per_tenant: int = setting("most webhooks of one tenant", default=100, minimum=1)
    allowed_networks: tuple[str, ...] = setting("private networks that webhooks may reach, as 10.1.0.0/16", default=())
    allow_insecure: bool = setting("accept http:// URLs of other machines: others can read events", default=False)
    request_timeout_seconds: float = setting("how long an endpoint may take", default=10.0, minimum=0.1, maximum=60)
    lease_seconds: float = setting("how long a sender lease lasts", default=30.0, minimum=0.5, maximum=300)
    max_requests: int = setting("most requests to one endpoint at once", default=8, minimum=1, maximum=64)
    max_attempts: int = setting("how often a delivery is sent", default=RETRY.max_attempts, minimum=1, maximum=100)
    first_retry_seconds: float = setting("longest wait after one failure", default=RETRY.initial_seconds, minimum=0.01)
    longest_retry_seconds: float = setting("longest wait after many", default=RETRY.cap_seconds, minimum=0.01)
    max_pending: int = setting("most pending deliveries of one webhook", default=10_000, minimum=1)
    max_dead: int = setting("dead deliveries at which a webhook is paused", default=10_000, minimum=1)

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy of one delivery."""
        return RetryPolicy(self.max_attempts, self.first_retry_seconds, RETRY.factor, self.longest_retry_seconds)

    def problems(self) -> Iterator[str]:
        """Yields violated relations between the settings."""
        if self.lease_seconds < 2 * self.request_timeout_seconds:
            yield f"{PREFIX}LEASE_SECONDS must be at least twice {PREFIX}REQUEST_TIMEOUT_SECONDS"
        try:
            Networks(self.allowed_networks)
        except ValueError as error:
            yield f"{PREFIX}ALLOWED_NETWORKS: {error}"


class WebhookPolicy(NamedTuple):
    """The limits that the installation sets for webhooks."""

    networks: Networks
    smtp: SmtpSettings
    most_webhooks: int
    most_pending: int
    secrets: SecretBox
    open_notifier: OpenNotifier
    allow_insecure: bool = False
    has_links: bool = False


_log: Final = logging.getLogger(__name__)
MAX_READ_BYTES: Final = 4096
MAX_PROBLEM_CHARACTERS: Final = 300
BODY_SECONDS: Final = 1.0
KEPT_ALIVE_SECONDS: Final = 4.0
_USER_AGENT: Final = f"tenure/{VERSION}"


class OutgoingDelivery(NamedTuple):
    """The columns of `take_deliveries`, in their order. `sent_at` is the database's time.

    `owner`: for whom the secrets are sealed, see `secret_owner`. `url`: without the path for a Slack webhook, whose URL
    is its secret. `line`: the task, unless the event concerns none.
    """

    ordinal: int
    delivery_id: str
    body: str
    attempts: int
    sent_at: datetime
    url: str
    secret: bytes
    old_secret: bytes | None
    kind: str = WebhookKind.STANDARD
    email_addresses: Sequence[str] = ()
    accepted_addresses: Sequence[str] = ()
    owner: str = ""
    tenant: str = ""
    webhook_id: str = ""
    webhook_name: str = ""
    answer_links: bool = False
    line: str = ""

    @property
    def remaining_addresses(self) -> tuple[str, ...]:
        """The recipients that have not accepted the e-mail yet."""
        return tuple(address for address in self.email_addresses if address not in self.accepted_addresses)

    def opened(self, secrets: SecretBox) -> OutgoingDelivery:
        """Returns the delivery with its secrets and its URL as they are. Raises Unavailable (SECRET_NOT_READABLE)."""
        secret = secrets.open(self.secret, self.owner)
        old_secret = None if self.old_secret is None else secrets.open(self.old_secret, self.owner)
        url = secret.decode() if self.kind == WebhookKind.SLACK else self.url
        return self._replace(secret=secret, old_secret=old_secret, url=url)


def secret_owner(tenant: str, webhook_id: str) -> str:
    """Returns the associated data of a webhook's secrets."""
    return f"{tenant}|{webhook_id}"


def request_of(
    delivery: OutgoingDelivery, notifier: Notifier, links: tuple[AnswerLink, ...] = ()
) -> tuple[list[tuple[str, str]], bytes]:
    """Returns the headers and the body of the request for a delivery that is not an e-mail."""
    if delivery.kind == WebhookKind.SLACK:
        headers = [("content-type", "application/json"), ("user-agent", _USER_AGENT)]
        return headers, notifier.slack_message(delivery.body, links)
    sent = delivery._replace(body=body_with_links(delivery.body, links))
    return headers_of(sent), sent.body.encode()


def headers_of(delivery: OutgoingDelivery) -> list[tuple[str, str]]:
    """Returns the headers, with a signature by each valid secret, the newest first."""
    secrets = [delivery.secret] if delivery.old_secret is None else [delivery.secret, delivery.old_secret]
    signatures = [Webhook(one).sign(delivery.delivery_id, delivery.sent_at, delivery.body) for one in secrets]
    return [
        ("content-type", "application/json"),
        ("user-agent", _USER_AGENT),
        ("webhook-id", delivery.delivery_id),
        ("webhook-timestamp", str(int(delivery.sent_at.timestamp()))),
        ("webhook-signature", " ".join(signatures)),
    ]


def printable(text: str) -> str:
    """Returns the text on one line, with characters that Postgres and terminals can show, and without tokens of links,
    which an endpoint may repeat.
    """
    return one_line(without_tokens(text), MAX_PROBLEM_CHARACTERS)


class Sender:
    """The connections of a process to all webhooks. It uses no proxy, keeps no cookies and follows no redirect."""

    def __init__(self, policy: WebhookPolicy, timeout_seconds: float, most_connections: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._secrets = policy.secrets
        self._email_seconds = policy.smtp.longest_seconds
        self._notifier = policy.open_notifier(policy.smtp)
        self._outgoing = Outgoing(
            CheckedNetworkBackend(policy.networks, "webhooks"),
            most_connections=most_connections,
            kept_alive_seconds=KEPT_ALIVE_SECONDS,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *how: object) -> None:
        await self._outgoing.__aexit__(*how)

    @property
    def longest_seconds(self) -> float:
        """The longest time that `send` takes."""
        return max(self._timeout_seconds, self._email_seconds)

    async def send(self, delivery: OutgoingDelivery, links: LinksByAddressee = NO_LINKS) -> WebhookResponse:
        """Sends a delivery. Returns a response within `longest_seconds` in every case, and raises nothing."""
        try:
            if delivery.kind == WebhookKind.EMAIL:
                answer = await self._notifier.send_email(delivery, links)
            else:
                own_links = next(iter(links.values()), ())
                answer = await self._request(delivery.opened(self._secrets), own_links)
        except Unavailable as error:
            answer = WebhookResponse(problem=str(error))
        except Exception:  # noqa: BLE001  logged, and recorded as a failure of this delivery; the others continue
            _log.exception("a webhook could not be sent", extra={"delivery": delivery.delivery_id})
            answer = WebhookResponse(problem="internal error; see the log")
        metrics.count("tenure_webhook_attempts_total", outcome="received" if answer.received else "failed")
        return answer

    async def _request(self, delivery: OutgoingDelivery, links: tuple[AnswerLink, ...]) -> WebhookResponse:
        heads: list[WebhookResponse] = []
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._post(delivery, links, heads)
        except TimeoutError:  # after the head, the time ends only the reading of the body
            return heads[0] if heads else WebhookResponse(problem=f"no answer within {self._timeout_seconds:g} s")
        except (UrlRefused, *FAILURES) as error:
            return WebhookResponse(problem=printable(f"{type(error).__name__}: {error}".removesuffix(": ")))

    async def _post(
        self, delivery: OutgoingDelivery, links: tuple[AnswerLink, ...], heads: list[WebhookResponse]
    ) -> WebhookResponse:
        """Returns the answer. `heads` gets it as soon as its head is there, without the words of its body."""
        url, (headers, body) = parse_url(delivery.url), request_of(delivery, self._notifier, links)
        async with self._outgoing.send("POST", url, headers, body) as response:
            heads.append(_answer(delivery, response, ""))
            message = await _beginning(response)
            return _answer(delivery, response, message)


def _answer(delivery: OutgoingDelivery, response: Response, message: str) -> WebhookResponse:
    answer = WebhookResponse(response.status)
    if answer.received:
        return answer
    retry_after = retry_after_seconds(response.headers.get("retry-after", ""), delivery.sent_at)
    problem = printable(f"HTTP {response.status}: {message}".removesuffix(": "))
    failure = http_failure(WebhookKind(delivery.kind), response.status)
    return WebhookResponse(response.status, problem, retry_after, failure)


async def _beginning(response: Response) -> str:
    """Returns the beginning of the response's body. An error while reading does not change the status, which
    decides.
    """
    read = bytearray()
    with suppress(TimeoutError, *FAILURES):
        async with asyncio.timeout(BODY_SECONDS):
            async for some in response.response.aiter_stream():
                read += some
                if len(read) >= MAX_READ_BYTES:
                    break
    return read[:MAX_READ_BYTES].decode(errors="replace")
