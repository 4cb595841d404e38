"""One e-mail to an SMTP server: bounded in time, with a connection of its own, and never without the required TLS."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.headerregistry import Address, HeaderRegistry, MessageIDHeader
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final, NamedTuple

import aiosmtplib

from edges.notifications.texts import Notification, notification_of
from services.checkpoint.webhooks.notifier import NO_LINKS, LinksByAddressee
from services.checkpoint.webhooks.sending import printable
from services.checkpoint.webhooks.smtp_settings import IMPLICIT, NO_TLS, PREFIX, QUIT_SECONDS, STARTTLS, SmtpSettings
from tenure.domain.approvals import without_tokens
from tenure.domain.email_addresses import domain_of
from tenure.domain.webhooks import FailureKind, WebhookResponse, smtp_failure

# The e-mail of a notification.

_TASK_ID: Final = re.compile(r"[0-9a-f-]{36}")
_HEADERS: Final = HeaderRegistry()
# As a text, a long id would be encoded, and so be another one. The registry makes a BaseHeader of the type.
_HEADERS.map_to_type("references", MessageIDHeader)  # type: ignore[arg-type]
_POLICY: Final = SMTP.clone(header_factory=_HEADERS)
_SUBJECT_PREFIX: Final = "[Tenure] "


def message_id_of(delivery_id: str, sender: str) -> str:
    """Returns the Message-ID of a delivery: the same for each attempt."""
    return f"<{delivery_id}@{domain_of(sender)}>"


def mail_of(
    notification: Notification, delivery_id: str, sender: str, recipients: Sequence[str], part: int = 0
) -> bytes:
    """Returns the e-mail as it is sent. A repeat has the same bytes, except for links, which are new.

    `part`: the number of the recipient, from 1, where each recipient gets a message of its own; else 0.
    """
    message = EmailMessage(policy=_POLICY)
    message["From"] = Address("Tenure", addr_spec=sender)
    message["To"] = [Address(addr_spec=recipient) for recipient in recipients]
    message["Subject"] = _SUBJECT_PREFIX + notification.title
    message["Message-ID"] = message_id_of(f"{delivery_id}.{part}" if part else delivery_id, sender)
    message["Date"] = format_datetime(notification.happened_at or datetime.fromtimestamp(0, UTC))
    if _TASK_ID.fullmatch(notification.task_id):
        message["References"] = f"<task-{notification.task_id}@{domain_of(sender)}>"  # a mail program groups by it
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_text(notification), cte="quoted-printable")
    return message.as_bytes()


def _text(notification: Notification) -> str:
    facts = "\n".join(f"{label + ':':<11} {value}" for label, value in notification.facts)
    sections = [f"{heading}:\n\n{_quoted(text)}" for heading, text in notification.sections]
    commands = "\n".join(f"  {command}" for command in notification.commands)
    parts = [
        _links(notification),
        notification.title,
        facts,
        *sections,
        f"Commands:\n\n{commands}" if commands else "",
        f"In the console:\n{notification.console_url}" if notification.console_url else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _quoted(text: str) -> str:
    """Returns a text of an agent or a user with each line marked: it may imitate a link that answers."""
    return "\n".join(f"> {line}" for line in text.splitlines())


def _links(notification: Notification) -> str:
    """Returns the links, each on a line of its own, which mail programs make clickable as a whole."""
    if not notification.links:
        return ""
    links = "\n\n".join(f"{link.label}:\n{link.url}" for link in notification.links)
    return (
        f"{links}\n\nOnly these links answer. A link opens a page that shows everything and asks again; opening it "
        "answers nothing. It is for you alone: who has it can answer. It ends with the first answer."
    )


class OutgoingMail(NamedTuple):
    """An e-mail. `recipients` are all addresses in its header; it is sent to `remaining` of them.

    With `links` each recipient gets a message of its own, because each has links of its own, or none.
    """

    delivery_id: str
    body: str
    recipients: tuple[str, ...]
    remaining: tuple[str, ...]
    links: LinksByAddressee = NO_LINKS

    def message(self, sender: str) -> bytes:
        """Returns the message to all recipients."""
        return mail_of(notification_of(self.body), self.delivery_id, sender, self.recipients)

    def message_to(self, recipient: str, sender: str) -> bytes:
        """Returns the message to one recipient, with the links of this recipient."""
        notification = notification_of(self.body, self.links.get(recipient, ()))
        part = 1 + self.recipients.index(recipient)
        return mail_of(notification, self.delivery_id, sender, [recipient], part)


_log: Final = logging.getLogger(__name__)
_PORTS: Final = {STARTTLS: 587, IMPLICIT: 465, NO_TLS: 25}
_SHOWN_REFUSALS: Final = 3
# A lookup of the own name could block for long.
_LOCAL_HOSTNAME: Final = socket.gethostname() if "." in socket.gethostname() else "[127.0.0.1]"


class MailSender:
    """Sends the e-mail of a process."""

    def __init__(self, settings: SmtpSettings) -> None:
        self._settings = settings
        self._free = asyncio.Semaphore(settings.max_connections)
        self._tls = settings.tls_context()

    async def send(self, mail: OutgoingMail) -> WebhookResponse:
        """Sends an e-mail to its remaining recipients. Returns the replies; raises nothing that a server can cause."""
        settings = self._settings
        if not settings.host:
            return WebhookResponse(problem=f"{PREFIX}HOST is not set: this installation sends no e-mail")
        if not all(map(settings.allows, mail.remaining)):
            problem = f"{PREFIX}RECIPIENT_DOMAINS does not allow all recipients"
            return WebhookResponse(problem=problem, failure=FailureKind.FINAL)
        accepted: list[str] = []
        try:
            async with asyncio.timeout(settings.timeout_seconds) as limit, self._free:
                client = self._client()
                try:
                    return await self._transmit(client, mail, limit, accepted)
                finally:
                    client.close()
        except TimeoutError:
            problem = f"the e-mail was not accepted within {settings.timeout_seconds:g} s"
            return WebhookResponse(problem=problem, accepted_addresses=tuple(accepted))
        except (aiosmtplib.SMTPException, OSError) as error:
            # The name and the address of the server concern the operator, not the tenant.
            why = without_tokens(f"{error} {error.__cause__ or ''}")
            _log.warning("an e-mail could not be sent", extra={"error": why})
            return WebhookResponse(problem=_problem(error), accepted_addresses=tuple(accepted))

    def _client(self) -> aiosmtplib.SMTP:
        settings = self._settings
        return aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port or _PORTS[settings.tls],
            username=settings.user or None,
            password=settings.password.reveal() if settings.user else None,
            local_hostname=_LOCAL_HOSTNAME,
            timeout=None,
            use_tls=settings.tls == IMPLICIT,
            start_tls=settings.tls == STARTTLS,
            tls_context=self._tls,
        )

    async def _transmit(
        self, client: aiosmtplib.SMTP, mail: OutgoingMail, limit: asyncio.Timeout, accepted: list[str]
    ) -> WebhookResponse:
        """Sends over a new connection. `accepted`: the recipients that accepted messages of their own, also if the rest
        fails.
        """
        try:
            await client.connect()
        except aiosmtplib.SMTPResponseException as error:
            # What the server says about the login concerns the operator, not the tenant.
            _log.warning("the SMTP server refused the connection", extra={"code": error.code, "error": error.message})
            return WebhookResponse(max(error.code, 0), f"the SMTP server refused the connection ({error.code})")
        response = await (self._submit_each(client, mail, accepted) if mail.links else self._submit(client, mail))
        limit.reschedule(None)  # the answer is known: nothing after it may turn it into a failure
        with suppress(TimeoutError, aiosmtplib.SMTPException, OSError):
            async with asyncio.timeout(QUIT_SECONDS):
                await client.quit()
        return response

    async def _submit(self, client: aiosmtplib.SMTP, mail: OutgoingMail) -> WebhookResponse:
        """Gives the server the sender, the recipients and the message. Some recipients may be refused."""
        refusals: list[tuple[str, aiosmtplib.SMTPResponseException]] = []
        accepted: list[str] = []
        sender = self._settings.from_address
        try:
            await client.mail(sender)
        except aiosmtplib.SMTPResponseException as error:
            return _refused([(sender, error)], ())
        for address in mail.remaining:
            try:
                await client.rcpt(address)
            except aiosmtplib.SMTPResponseException as error:
                refusals.append((address, error))
            else:
                accepted.append(address)
        if accepted:
            try:
                await client.data(mail.message(sender))
            except aiosmtplib.SMTPResponseException as error:
                return _refused([("the e-mail", error), *refusals], ())
        return (
            _refused(refusals, tuple(accepted)) if refusals else WebhookResponse(250, accepted_addresses=mail.remaining)
        )

    async def _submit_each(self, client: aiosmtplib.SMTP, mail: OutgoingMail, accepted: list[str]) -> WebhookResponse:
        """Gives the server one message for each recipient. Some may be refused."""
        refusals: list[tuple[str, aiosmtplib.SMTPResponseException]] = []
        sender = self._settings.from_address
        for address in mail.remaining:
            try:
                await client.mail(sender)
                await client.rcpt(address)
                await client.data(mail.message_to(address, sender))
            except aiosmtplib.SMTPResponseException as error:
                refusals.append((address, error))
                with suppress(aiosmtplib.SMTPResponseException):  # the next MAIL is refused then
                    await client.rset()
            else:
                accepted.append(address)
        return (
            _refused(refusals, tuple(accepted)) if refusals else WebhookResponse(250, accepted_addresses=mail.remaining)
        )


def _problem(error: Exception) -> str:
    """Returns what a tenant may know about a failed connection, or about one that broke."""
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return f"the certificate or the TLS of the SMTP server cannot be used ({type(error).__name__}); see the log"
    if isinstance(error, aiosmtplib.SMTPConnectError | OSError):
        return f"the SMTP server cannot be reached ({type(error).__name__}); see the log"
    return printable(f"{type(error).__name__}: {error}")


def _refused(
    refusals: Sequence[tuple[str, aiosmtplib.SMTPResponseException]], accepted: tuple[str, ...]
) -> WebhookResponse:
    """Returns the response of a partial or complete refusal. It is final when each refusal is."""
    codes = [error.code for _, error in refusals]
    code = next((one for one in codes if smtp_failure(one) is FailureKind.TEMPORARY), codes[0])
    shown = "; ".join(f"{whom}: {error.code} {error.message}" for whom, error in refusals[:_SHOWN_REFUSALS])
    more = f"; and {len(refusals) - _SHOWN_REFUSALS} more" if len(refusals) > _SHOWN_REFUSALS else ""
    # A code below 300 is not a refusal that SMTP knows: it must not be read as a receipt.
    status = code if code >= 300 else 0
    return WebhookResponse(status, printable(shown + more), None, smtp_failure(code), accepted)
