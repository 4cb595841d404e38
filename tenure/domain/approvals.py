"""Decides who may answer a wait, and what an answer link is: its token, its life, its answers, and what it showed.

A link's token is like an API key: a public id, by which the ledger finds the link, and a secret. The ledger stores
SHA-256 of the whole token; 256 random bits need no salt and no slow hash.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tenure.domain.email_addresses import is_email_address
from tenure.domain.errors import NotFound, PermissionDenied, WrongState
from tenure.domain.outbound import is_clear_text
from tenure.domain.states import TaskState
from tenure.domain.waits import ALLOW, APPROVE, CONTINUE, DENY, EDIT, MAX_WAIT_SECONDS, Wait, WaitKind, is_for_person
from tenure.domain.webhooks import WAIT_ESCALATED_EVENT, state_event

# Who may answer.

GROUP_PREFIX: Final = "group:"
WEBHOOK_PREFIX: Final = "webhook/"
MAX_MEMBER_CHARACTERS: Final = 300
MAX_GROUPS: Final = 100
GROUP_NAME_RULE: Final = "must be a name of up to 63 characters"
MEMBER_RULE: Final = (
    'must be 1 to 300 printable characters: "key/" and an id, "user/" and a subject, "webhook/" and a name, or an '
    "e-mail address"
)
APPROVER_RULE: Final = f'must be "{GROUP_PREFIX}" and the name of a group, or a member'
_GROUP_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")


def is_group_name(text: str) -> bool:
    """Whether the text can be the name of an approver group."""
    return _GROUP_NAME.fullmatch(text) is not None


def is_member(text: str) -> bool:
    """Whether the text can be a member: the identity of a caller, or the addressee of links."""
    is_text = 0 < len(text) <= MAX_MEMBER_CHARACTERS and text.isprintable() and text == text.strip()
    return is_text and not text.startswith(GROUP_PREFIX) and ("/" in text or is_email_address(text))


def is_approver(text: str) -> bool:
    """Whether the text can stand in `approvers`: a group or a member."""
    group = text.removeprefix(GROUP_PREFIX)
    return is_group_name(group) if group != text else is_member(text)


def groups_in(approvers: Iterable[str]) -> list[str]:
    """Returns the names of the groups among the approvers."""
    return sorted({one.removeprefix(GROUP_PREFIX) for one in approvers if one.startswith(GROUP_PREFIX)})


def may_answer(approvers: Iterable[str], members: Mapping[str, Iterable[str]], identity: str) -> bool:
    """Whether the identity may answer a wait with these approvers; none: everyone may. `members`: of each group.

    E-mail addresses are compared without regard to case, as their domains are; all other identities exactly, and so is
    all that has a slash.
    """
    approvers = list(approvers)
    if not approvers:
        return True
    named = [one for one in approvers if not one.startswith(GROUP_PREFIX)]
    of_groups = [member for group in groups_in(approvers) for member in members.get(group, ())]
    return _compared(identity) in {_compared(one) for one in (*named, *of_groups)}


def _compared(identity: str) -> str:
    # A slash may stand in an address, too: "user/Ann@example.com" is a caller, whose subject is compared exactly.
    return identity.lower() if is_email_address(identity) and "/" not in identity else identity


def refuse_answerer(wait: Wait, members: Mapping[str, Iterable[str]], identity: str) -> PermissionDenied | None:
    """Returns the error if the identity may not answer the wait."""
    refusal = refuse_identity(wait.approvers, members, identity, f"answer {wait.wait_id}")
    if refusal is not None:
        refusal.metadata["wait_id"] = wait.wait_id
    return refusal


def refuse_identity(
    approvers: Iterable[str], members: Mapping[str, Iterable[str]], identity: str, act: str
) -> PermissionDenied | None:
    """Returns the error if the identity is none of the approvers. `act`: what they may do."""
    approvers = list(approvers)
    if may_answer(approvers, members, identity):
        return None
    listed = ", ".join(approvers)
    message = f"{identity} may not {act}: only {listed} may"
    return PermissionDenied(message, reason="NOT_AN_APPROVER", metadata={"approvers": listed})


# What was shown.


def shown_digest(task_id: str, wait: Wait) -> str:
    """Returns the digest of what a person can read of the wait. The task and its goal never change, so its id is enough
    of it; neither the cost nor the deadline is in the digest.
    """
    shown: dict[str, object] = {
        "task_id": task_id,
        "wait_id": wait.wait_id,
        "kind": wait.kind.value,
        "question": wait.question,
        "context": wait.context,
        "reference": wait.reference,
        "options": list(wait.options),
        "tool": wait.tool,
        "arguments_json": wait.arguments_json,
    }
    if wait.calls:
        shown["calls"] = [[call.call_id, call.tool, call.arguments_json] for call in wait.calls]
    if wait.budget_request is not None:
        shown["limit"] = wait.budget_request.limit
        shown["suggested_tokens"] = wait.budget_request.suggested_tokens
        shown["suggested_nano_usd"] = wait.budget_request.suggested_nano_usd
    text = json.dumps(shown, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def refuse_other_view(wait: Wait, task_id: str, claimed_digest: str) -> WrongState | None:
    """Returns the error if the person read something else than the present wait. An empty digest claims nothing."""
    if not claimed_digest or hmac.compare_digest(claimed_digest, shown_digest(task_id, wait)):
        return None
    message = f"{wait.wait_id} is not what was shown: read it again and decide again"
    return WrongState(message, reason="WAIT_CHANGED", metadata={"wait_id": wait.wait_id})


# Links.

TOKEN_PREFIX: Final = "tal_"
LINK_PATH: Final = "/a/"
LINK_ID_BYTES: Final = 12
LINK_SECRET_BYTES: Final = 32
DEFAULT_LINK_SECONDS: Final = 24 * 3600.0
LONGEST_LINK_SECONDS: Final = MAX_WAIT_SECONDS
_ID_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_LINK_ID: Final = re.compile(r"[a-z0-9]{12}")
_TOKEN: Final = re.compile(r"tal_(?P<link_id>[a-z0-9]{12})_[A-Za-z0-9_-]{43}")
_TOKENS_IN_TEXT: Final = re.compile(r"tal_[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class LinkToken:
    """A token as the ledger may know it: the public id of the link, and the digest of the whole token."""

    link_id: str
    digest: bytes


def is_link_id(text: str) -> bool:
    """Whether the text is the public part of a token."""
    return _LINK_ID.fullmatch(text) is not None


def make_link_token(random_id: bytes, random_secret: bytes) -> str:
    """Returns a new token from 12 and 32 random bytes."""
    link_id = "".join(_ID_DIGITS[byte % len(_ID_DIGITS)] for byte in random_id)
    return f"{TOKEN_PREFIX}{link_id}_{base64.urlsafe_b64encode(random_secret).decode().rstrip('=')}"


def read_link_token(text: str) -> LinkToken | None:
    """Returns the public part and the digest of a token, or None for a text that is not a token."""
    match = _TOKEN.fullmatch(text)
    return LinkToken(match["link_id"], sha256(text.encode()).digest()) if match else None


def without_tokens(text: str) -> str:
    """Returns the text without tokens, also without beginnings of tokens: what an endpoint answers may repeat them."""
    return _TOKENS_IN_TEXT.sub(f"{TOKEN_PREFIX}…", text)


def problem_of_public_url(url: str) -> str:
    """Returns what is wrong with the base of all links; "" for a usable one."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        return "must be the address of the gateway's HTTP port for people, such as https://tenure.example.com"
    if parts.query or parts.fragment or "@" in parts.netloc or "?" in url or "#" in url:
        return "must have neither a query, a fragment nor a user"
    return "must begin with https://, unless its host is this machine" if is_clear_text(url) else ""


def link_url(public_url: str, token: str, decision: str = "") -> str:
    """Returns the URL of a link. A decision is only preselected on the page."""
    choice = f"?answer={decision}" if decision in _PRESELECTED else ""
    return f"{public_url.rstrip('/')}{LINK_PATH}{token}{choice}"


_PRESELECTED: Final = {ALLOW: "Approve", APPROVE: "Approve", DENY: "Reject", CONTINUE: "Continue"}
_OPEN: Final = "Open"
_WAIT_EVENTS: Final = (state_event(TaskState.WAITING_USER), WAIT_ESCALATED_EVENT)


def takes_links(kind: WaitKind) -> bool:
    """Whether a wait of this kind is answered by links: each wait that a person answers."""
    return is_for_person(kind)


def decisions_by_link(wait: Wait) -> tuple[str, ...]:
    """Returns the decisions that a link offers: the options of the wait, but not the edit of a call. Empty: a text."""
    return tuple(option for option in wait.options if not (wait.kind is WaitKind.TOOL_APPROVAL and option == EDIT))


def label_of(decision: str) -> str:
    """Returns the text of the button for a decision."""
    return _PRESELECTED.get(decision, decision)


class AnswerLink(NamedTuple):
    """A link that answers a wait. `decision`: the one that its page preselects; "": none."""

    label: str
    decision: str
    url: str


def body_with_links(body: str, links: tuple[AnswerLink, ...]) -> str:
    """Returns the body of a signed request with the links, in `data.answer_links`."""
    if not links:
        return body
    event = json.loads(body)
    event["data"]["answer_links"] = [link._asdict() for link in links]
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def wait_of(body: str) -> str | None:
    """Returns the id of the wait that the event of a delivery reports, or None for an event of another kind.

    An event whose large task was left out reports a wait without an id: "".
    """
    value: Any = json.loads(body)
    if not isinstance(value, dict) or value.get("type") not in _WAIT_EVENTS:
        return None
    for name in ("data", "task", "wait", "wait_id"):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def links_of(public_url: str, token: str, wait: Wait) -> tuple[AnswerLink, ...]:
    """Returns one link for each decision that has a word of its own, or one that opens the form."""
    decisions = decisions_by_link(wait)
    if decisions and all(decision in _PRESELECTED for decision in decisions):
        return tuple(
            AnswerLink(label_of(decision), decision, link_url(public_url, token, decision)) for decision in decisions
        )
    return (AnswerLink(_OPEN, "", link_url(public_url, token)),)


@dataclass(frozen=True, slots=True)
class StoredLink:
    """A link in the ledger. `is_expired`: by the database's time."""

    link_id: str
    digest: bytes
    tenant: str
    task_id: str
    wait_id: str
    addressee: str
    is_expired: bool

    @property
    def actor(self) -> str:
        """The author of an answer by this link."""
        return f"link/{self.addressee}"


def verify_link(presented: LinkToken, stored: StoredLink | None) -> StoredLink:
    """Returns the link. Raises the same NotFound for an unknown and a wrong token; WrongState for an expired one."""
    digest = stored.digest if stored is not None else bytes(32)
    is_equal = hmac.compare_digest(presented.digest, digest)
    if stored is None or not is_equal:
        raise NotFound("there is no such link: it is wrong, or was removed", reason="ANSWER_LINK_NOT_FOUND")
    if stored.is_expired:
        raise WrongState("the link has expired", reason="ANSWER_LINK_EXPIRED", metadata={"wait_id": stored.wait_id})
    return stored


def addressees_of(webhook: str, email_addresses: Iterable[str]) -> tuple[str, ...]:
    """Returns whom a webhook's links belong to: each address of an e-mail, or the endpoint by the webhook's name."""
    return tuple(email_addresses) or (f"{WEBHOOK_PREFIX}{webhook}",)
