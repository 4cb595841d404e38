"""What an edge does for the webhooks of people: it writes messages to Slack, and writes and sends e-mail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.approvals import AnswerLink
from tenure.domain.webhooks import WebhookResponse

if TYPE_CHECKING:
    from services.checkpoint.webhooks.sending import OutgoingDelivery

LinksByAddressee = Mapping[str, tuple[AnswerLink, ...]]
"""The links of one delivery: for each e-mail address, or for the webhook."""
NO_LINKS: Final[LinksByAddressee] = MappingProxyType({})


class Notifier(Protocol):
    """The notifications of a process."""

    def slack_message(self, body: str, links: tuple[AnswerLink, ...]) -> bytes:
        """Returns the body of the request to Slack for the body of a delivery."""

    async def send_email(self, delivery: OutgoingDelivery, links: LinksByAddressee) -> WebhookResponse:
        """Sends a delivery to its remaining addresses. Raises nothing that a server can cause."""


OpenNotifier = Callable[[SmtpSettings], Notifier]
