"""The notifications of a checkpoint service: its Notifier (services/checkpoint/webhooks/notifier.py)."""

from __future__ import annotations

from edges.notifications.slack import slack_message
from edges.notifications.smtp import MailSender, OutgoingMail
from edges.notifications.texts import notification_of
from services.checkpoint.webhooks.notifier import LinksByAddressee
from services.checkpoint.webhooks.sending import OutgoingDelivery
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.approvals import AnswerLink
from tenure.domain.webhooks import WebhookResponse


class PeopleNotifier:
    """Writes messages to Slack, and sends e-mail by the SMTP server of the installation."""

    def __init__(self, smtp: SmtpSettings) -> None:
        self._mail = MailSender(smtp)

    def slack_message(self, body: str, links: tuple[AnswerLink, ...]) -> bytes:
        """Returns the body of the request to Slack."""
        return slack_message(notification_of(body, links)).encode()

    async def send_email(self, delivery: OutgoingDelivery, links: LinksByAddressee) -> WebhookResponse:
        """Sends the delivery to its remaining addresses."""
        recipients = tuple(delivery.email_addresses)
        mail = OutgoingMail(delivery.delivery_id, delivery.body, recipients, delivery.remaining_addresses, links)
        return await self._mail.send(mail)
