"""Decides about webhooks: event types, subscriptions, request bodies, and the meaning of responses.

The convention is Standard Webhooks (standardwebhooks.com): names of types, headers, retries, 410 and Retry-After.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

from tenure.domain.retry import RetryPolicy
from tenure.domain.states import TERMINAL, WAITING, Reason, TaskState

TEST_EVENT: Final = "webhook.test"
MISSED_EVENT: Final = "webhook.missed"
CANCEL_REQUESTED_EVENT: Final = "task.cancel_requested"
BUDGET_WARNING_EVENT: Final = "task.budget_warning"
QUOTA_WARNING_EVENT: Final = "task.quota_warning"
WAIT_ESCALATED_EVENT: Final = "task.wait_escalated"
WARNING_EVENTS: Final = {
    Reason.BUDGET_WARNING: BUDGET_WARNING_EVENT,
    Reason.QUOTA_WARNING: QUOTA_WARNING_EVENT,
    Reason.WAIT_ESCALATED: WAIT_ESCALATED_EVENT,
}
"""The event types of warnings, which change no state, by their reason."""

MAX_BODY_BYTES: Final = 64 * 1024
MAX_REPLAYED: Final = 1000
MAX_RECEIVED_KEPT: Final = 1000
DEFAULT_OVERLAP_SECONDS: Final = 24 * 3600.0
LONGEST_RETRY_AFTER_SECONDS: Final = 6 * 3600.0
RETRY: Final = RetryPolicy(max_attempts=10, initial_seconds=10.0, factor=4.0, cap_seconds=6 * 3600.0)

_PATTERN: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(\.\*)?\Z")
_LONG_FIELDS: Final = ("result", "result_data", "message", "goal", "system", "function", "result_schema", "outputs")
_SHORT_BYTES: Final = 1000
_ELLIPSIS: Final = " …"
_GONE: Final = 410
_SLACK_TRIES_AGAIN: Final = frozenset({408, 425, 429})
_SMTP_OPERATOR: Final = frozenset({503, 530, 534, 535, 538})
"""SMTP replies that ask for a login or for TLS: the operator's settings are wrong, not the e-mail."""


class WebhookKind(StrEnum):
    """The kind of destination of a webhook."""

    STANDARD = "STANDARD"  # a signed request by the Standard Webhooks convention
    SLACK = "SLACK"  # a message in the format of Slack's incoming webhooks
    EMAIL = "EMAIL"


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"


class FailureKind(StrEnum):
    """The consequence of a failed attempt for its delivery."""

    TEMPORARY = "TEMPORARY"  # another attempt may succeed
    FINAL = "FINAL"  # no attempt can succeed: the delivery is dead at once
    GONE = "GONE"  # the endpoint wants no more deliveries: the webhook is paused


class GapReason(StrEnum):
    """Why a webhook missed changes."""

    EXPIRED = "EXPIRED"
    OTHER_FEED = "OTHER_FEED"
    PUT_BACK = "PUT_BACK"


class PauseCode:
    """The reason of a pause. Not an enum, because the codes are an open set."""

    OPERATOR = "OPERATOR"
    GONE = "GONE"
    DEAD_LETTERS_FULL = "DEAD_LETTERS_FULL"


def state_event(state: TaskState) -> str:
    """Returns the event type of a transition to the state."""
    return f"task.{state.lower()}"


DEFAULT_EVENTS: Final = frozenset(
    {state_event(state) for state in TERMINAL | WAITING} | set(WARNING_EVENTS.values()),
)
KNOWN_EVENTS: Final = frozenset({state_event(state) for state in TaskState} | {CANCEL_REQUESTED_EVENT}) | DEFAULT_EVENTS
"""The event types of this release. Webhooks may subscribe to others, which a newer release may send."""


def event_of(state: TaskState, reason: str, *, cancel_requested: bool) -> str:
    """Returns the event type of a change. A warning or a cancel request is not an event of the task's state."""
    if reason in WARNING_EVENTS:
        return WARNING_EVENTS[reason]
    return CANCEL_REQUESTED_EVENT if cancel_requested else state_event(state)


def is_pattern(text: str) -> bool:
    """Whether the text is an event type or a pattern: `task.succeeded`, `task.*`."""
    return len(text) <= 100 and _PATTERN.match(text) is not None


def wants(patterns: Sequence[str], event: str) -> bool:
    """Whether a webhook with these patterns gets the event. Without patterns it gets DEFAULT_EVENTS."""
    if not patterns:
        return event in DEFAULT_EVENTS
    return any(event == one or (one.endswith(".*") and event.startswith(one[:-1])) for one in patterns)


def body_of(event: str, moment: datetime, data: dict[str, Any], most_bytes: int = MAX_BODY_BYTES) -> str:
    """Returns the JSON that is sent and signed. The long fields of a large task are truncated, the longest first."""
    payload = {"type": event, "timestamp": moment.astimezone(UTC).isoformat().replace("+00:00", "Z"), "data": data}
    text = _compact(payload)
    if len(text.encode()) <= most_bytes:
        return text
    cut: list[str] = []
    task = data.get("task") or {}
    for name in sorted(_LONG_FIELDS, key=lambda name: -len(_compact(task.get(name)))):
        excess = len(text.encode()) - most_bytes
        if excess <= 0:
            break
        if _cut(task, name, excess + 200):
            cut.append(f"task.{name}")
        text = _compact({**payload, "truncated": sorted(cut)})
    if len(text.encode()) > most_bytes:
        # Arguments, labels and waits can be long too: then the receiver reads the task by its id.
        data.pop("task", None)
        text = _compact({**payload, "truncated": ["task"]})
    return text


def _cut(task: dict[str, Any], name: str, excess_bytes: int) -> bool:
    """Shortens a text by `excess_bytes`, but not below `_SHORT_BYTES`; a long value of another type becomes null.

    Returns whether it changed the field.
    """
    value = task.get(name)
    text = (value if isinstance(value, str) else _compact(value)).encode()
    if len(text) <= _SHORT_BYTES:
        return False
    # A byte of the text is one or more bytes of JSON, so the body shrinks by at least `excess_bytes`.
    kept = text[: max(_SHORT_BYTES, len(text) - excess_bytes)].decode(errors="ignore")
    task[name] = kept + _ELLIPSIS if isinstance(value, str) else None
    return True


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The result of one attempt: a status of HTTP or SMTP, or 0 and the problem.

    `accepted_addresses`: of an e-mail, the recipients that accepted it in this attempt.
    """

    status: int = 0
    problem: str = ""
    retry_after_seconds: float | None = None
    failure: FailureKind = FailureKind.TEMPORARY
    accepted_addresses: tuple[str, ...] = ()

    @property
    def received(self) -> bool:
        return 200 <= self.status < 300


def http_failure(kind: WebhookKind, status: int) -> FailureKind:
    """Returns what a status other than 2xx means. Slack answers a wrong request or a deleted webhook with 400 to 404;
    other endpoints may be in the middle of a repair, so that every status but 410 is worth another attempt.
    """
    if status == _GONE:
        return FailureKind.GONE
    is_final = kind is WebhookKind.SLACK and 400 <= status < 500 and status not in _SLACK_TRIES_AGAIN
    return FailureKind.FINAL if is_final else FailureKind.TEMPORARY


def smtp_failure(code: int) -> FailureKind:
    """Returns what a refusal of the sender, of a recipient or of the message means."""
    is_final = 500 <= code < 600 and code not in _SMTP_OPERATOR
    return FailureKind.FINAL if is_final else FailureKind.TEMPORARY


@dataclass(frozen=True, slots=True)
class DeliveryVerdict:
    """The next state of a delivery. `wait_seconds`: until the next attempt, if the state is PENDING."""

    state: DeliveryState
    wait_seconds: float = 0.0
    hold_seconds: float = 0.0
    pause_code: str = ""


def decide_delivery(
    answer: WebhookResponse, attempts: int, random_fraction: float, policy: RetryPolicy = RETRY
) -> DeliveryVerdict:
    """Decides about a delivery after attempt number `attempts`. `random_fraction`: in [0, 1), for the jitter.

    The Retry-After of an overloaded endpoint (429, 503) holds back all deliveries to it.
    """
    if answer.received:
        return DeliveryVerdict(DeliveryState.DELIVERED)
    if answer.failure is FailureKind.GONE:
        return DeliveryVerdict(DeliveryState.PENDING, pause_code=PauseCode.GONE)
    if answer.failure is FailureKind.FINAL or attempts >= policy.max_attempts:
        return DeliveryVerdict(DeliveryState.DEAD)
    retry_after = min(answer.retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS)
    wait = policy.wait_seconds(attempts, random_fraction, retry_after)
    return DeliveryVerdict(
        DeliveryState.PENDING, wait, hold_seconds=retry_after if answer.status in {429, 503} else 0.0
    )


def retry_after_seconds(text: str, now: datetime) -> float | None:
    """Parses a Retry-After header: seconds or a date. None: it is neither."""
    text = text.strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())


def unknown_events(patterns: Iterable[str]) -> list[str]:
    """Returns the patterns that match no event of this release: probably a typing error."""
    return [one for one in patterns if not any(wants([one], event) for event in KNOWN_EVENTS)]


# Decides which webhooks get the sender leases of a replica, so that the webhooks of one tenant do not keep all.

SHARE: Final = 3
"""A tenant holds at most this many times the leases that are free: alone it gets three quarters of all, and a tenant
that comes later finds some free.
"""


def chosen(due: Sequence[str], held: Iterable[str], free: int) -> list[int]:
    """Returns the indexes of the due webhooks that get a lease now, of the tenants with the fewest leases first.

    `due`: their tenants, those that have waited longest first. `held`: the tenants of the leases that run.
    """
    counts = Counter(held)
    places = []
    for index, tenant in enumerate(due):
        counts[tenant] += 1
        places.append((counts[tenant], index))
    taken = []
    for place, index in sorted(places):
        if place > SHARE * free:
            break  # all that follow would pass their shares, too
        taken.append(index)
        free -= 1
    return taken


def surplus(held: Sequence[str], wanted: int) -> list[int]:
    """Returns the indexes of the leases that end for others that wait: the oldest of the tenants with the most leases.

    `held`: the tenants of the leases, the oldest first.
    """
    counts = Counter(held)
    oldest = {tenant: [index for index, one in enumerate(held) if one == tenant] for tenant in counts}
    ending = []
    for _ in range(min(wanted, len(held))):
        tenant = max(counts, key=lambda one: counts[one])
        ending.append(oldest[tenant][len(oldest[tenant]) - counts[tenant]])
        counts[tenant] -= 1
    return ending
