"""One request to a webhook: signed, bounded in time and in what is read, redirected nowhere."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from standardwebhooks import Webhook

from tenure.domain.addresses import Networks
from tenure.domain.urls import UrlRefused, parse_url
from tenure.domain.webhooks import Answer, retry_after_seconds
from tenure.runtime import metrics
from tenure.runtime.checked_network import CheckedBackend
from tenure.runtime.outgoing import FAILURES, Outgoing
from tenure.runtime.outgoing import Answer as Response

if TYPE_CHECKING:
    from datetime import datetime

_log: Final = logging.getLogger(__name__)
MOST_READ_BYTES: Final = 4096
BODY_SECONDS: Final = 1.0
MOST_PROBLEM_CHARACTERS: Final = 300
KEPT_ALIVE_SECONDS: Final = 4.0
_USER_AGENT: Final = f"tenure/{version('tenure')}"


class Letter(NamedTuple):
    """The columns of `take_deliveries`, in their order. `sent_at` is the database's time."""

    ordinal: int
    delivery_id: str
    body: str
    attempts: int
    sent_at: datetime
    url: str
    secret: bytes
    old_secret: bytes | None


def headers_of(letter: Letter) -> list[tuple[str, str]]:
    """With a signature by each secret that holds, the newest first."""
    secrets = [letter.secret] if letter.old_secret is None else [letter.secret, letter.old_secret]
    signatures = [Webhook(one).sign(letter.delivery_id, letter.sent_at, letter.body) for one in secrets]
    return [
        ("content-type", "application/json"),
        ("user-agent", _USER_AGENT),
        ("webhook-id", letter.delivery_id),
        ("webhook-timestamp", str(int(letter.sent_at.timestamp()))),
        ("webhook-signature", " ".join(signatures)),
    ]


class Sender:
    """The connections of a process to all webhooks. It goes through no proxy, keeps no cookies and follows nothing."""

    def __init__(self, networks: Networks, timeout_seconds: float, most_connections: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._outgoing = Outgoing(
            CheckedBackend(networks, "webhooks"),
            most_connections=most_connections,
            kept_alive_seconds=KEPT_ALIVE_SECONDS,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *how: object) -> None:
        await self._outgoing.__aexit__(*how)

    async def send(self, letter: Letter) -> Answer:
        """What came of it, within the timeout, whatever happens."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._send(letter)
        except TimeoutError:
            answer = Answer(problem=f"no answer within {self._timeout_seconds:g} s")
        except (UrlRefused, *FAILURES) as error:
            answer = Answer(problem=_said(f"{type(error).__name__}: {error}".removesuffix(": ")))
        except Exception:  # noqa: BLE001  logged, and told as a failure of this delivery: the others go on
            _log.exception("a webhook could not be sent", extra={"delivery": letter.delivery_id})
            answer = Answer(problem="internal error; see the log")
        metrics.count("tenure_webhook_attempts_total", outcome="received" if answer.received else "failed")
        return answer

    async def _send(self, letter: Letter) -> Answer:
        url, body = parse_url(letter.url), letter.body.encode()
        async with self._outgoing.send("POST", url, headers_of(letter), body) as response:
            said = await _beginning(response)
            answer = Answer(response.status)
            if answer.received:
                return answer
            asked = retry_after_seconds(response.headers.get("retry-after", ""), letter.sent_at)
            return Answer(response.status, _said(f"HTTP {response.status}: {said}".removesuffix(": ")), asked)


async def _beginning(response: Response) -> str:
    """As much of the answer's body as is worth keeping. The status is the answer: no body takes that back."""
    read = bytearray()
    with suppress(TimeoutError, *FAILURES):
        async with asyncio.timeout(BODY_SECONDS):
            async for some in response.response.aiter_stream():
                read += some
                if len(read) >= MOST_READ_BYTES:
                    break
    return read[:MOST_READ_BYTES].decode(errors="replace")


def _said(text: str) -> str:
    """On one line, of characters that Postgres and terminals can hold."""
    flat = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return flat if len(flat) <= MOST_PROBLEM_CHARACTERS else flat[: MOST_PROBLEM_CHARACTERS - 1] + "…"
