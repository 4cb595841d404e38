"""The e-mail of a notification."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.headerregistry import Address, HeaderRegistry, MessageIDHeader
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Final

from edges.notifications.texts import Notification
from tenure.domain.email_addresses import domain_of

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
