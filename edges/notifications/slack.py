"""The format of Slack's incoming webhooks, which Mattermost and others read too.

The texts of a notification come from agents and users. They cannot mention anyone, link or format: `&`,
`<` and `>` are escaped, a zero-width space parts `@channel` and its like, and the blocks show them as plain text.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from edges.notifications.texts import Notification
from tenure.domain.approvals import AnswerLink
from tenure.domain.waits import ALLOW, APPROVE, DENY

MAX_TEXT: Final = 3900
"""Slack recommends at most 4,000 characters for `text`."""
MAX_SECTION: Final = 3000
MAX_HEADER: Final = 150
MAX_BUTTONS: Final = 5
MAX_LABEL: Final = 75
CONSOLE: Final = "console"
CONSOLE_LABEL: Final = "Open in the console"
_STYLES: Final = {ALLOW: "primary", APPROVE: "primary", DENY: "danger"}

_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MENTION: Final = re.compile(r"@(?=(channel|here|everyone|all)\b)", re.IGNORECASE)


def escape(text: str, most: int) -> str:
    """Returns the text without control sequences of Slack, in at most `most` characters of the escaped text."""
    escaped: list[str] = []
    room = most - 1
    for one in _MENTION.sub("@\u200b", text):
        piece = _ESCAPES.get(one, one)
        room -= len(piece)
        if room < 0:
            return "".join(escaped) + "…"
        escaped.append(piece)
    return "".join(escaped)


def slack_message(notification: Notification) -> str:
    """Returns the JSON of a message: `text` for readers without blocks and for alerts, and the blocks."""
    payload = {
        "text": _text(notification),
        "blocks": _blocks(notification),
        "unfurl_links": False,
        "unfurl_media": False,
    }
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def _text(notification: Notification) -> str:
    facts = "\n".join(f"{label}: {value}" for label, value in notification.facts)
    parts = [notification.title, facts, *(f"{heading}: {text}" for heading, text in notification.sections)]
    rest = [part for part in (_links(notification), _commands(notification)) if part]
    room = MAX_TEXT - sum(len(part) + 1 for part in rest)
    return "\n".join([escape("\n".join(part for part in parts if part), room), *rest])


def _blocks(notification: Notification) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain(notification.title, MAX_HEADER)}]
    facts = "\n".join(f"{label}: {value}" for label, value in notification.facts)
    texts = [facts, *(f"{heading}\n{text}" for heading, text in notification.sections)]
    blocks += [{"type": "section", "text": _plain(text, MAX_SECTION)} for text in texts if text]
    if buttons := _buttons(notification):
        blocks.append({"type": "actions", "elements": [_button(*link) for link in buttons]})
    if commands := _commands(notification):
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": commands, "verbatim": True}})
    return blocks


def _button(label: str, decision: str, url: str) -> dict[str, Any]:
    """A button that opens the page of the link. Slack sends us nothing when it is pressed."""
    style = _STYLES.get(decision)
    action = f"answer-{decision or 'open'}"
    button = {"type": "button", "action_id": action, "text": _plain(label, MAX_LABEL), "url": url}
    return button if style is None else {**button, "style": style}


def _links(notification: Notification) -> str:
    """Returns the links for readers without blocks. Their URLs have no character that the format escapes."""
    return " · ".join(f"<{link.url}|{escape(link.label, MAX_LABEL)}>" for link in _buttons(notification))


def _buttons(notification: Notification) -> tuple[AnswerLink, ...]:
    """Returns the links that answer, then the link to the console."""
    console = (AnswerLink(CONSOLE_LABEL, CONSOLE, notification.console_url),) if notification.console_url else ()
    return (*notification.links[:MAX_BUTTONS], *console)


def _plain(text: str, most: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": escape(text, most), "emoji": False}


def _commands(notification: Notification) -> str:
    """Returns the commands as a block of code. They contain ids and fixed words only, so that they are short."""
    return (
        "```\n" + escape("\n".join(notification.commands), MAX_SECTION - 8) + "\n```" if notification.commands else ""
    )
