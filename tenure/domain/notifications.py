"""Decides which changes of tasks become messages of their own to people, in Slack or by e-mail.

A person reads few messages: a tree of tasks has one end, that of its root, and changes that are old when they are read
(the webhook was paused, or the service was away) become one summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum, auto, unique
from typing import Any, Final, NamedTuple

from tenure.domain.states import Reason, TaskState
from tenure.domain.webhooks import BUDGET_WARNING_EVENT, QUOTA_WARNING_EVENT, WAIT_ESCALATED_EVENT, state_event

SUMMARY_EVENT: Final = "webhook.summary"
LATE_SECONDS: Final = 3600.0
"""How old a change is when it is read, for the summary to have it."""
SUMMARY_DELAY_SECONDS: Final = 30.0
"""How long a summary waits for further late changes before it is sent."""
MAX_LISTED: Final = 20
"""The late ends that a summary names; it counts the others."""
_ASKS_A_PERSON: Final = frozenset({state_event(TaskState.WAITING_USER), WAIT_ESCALATED_EVENT})
_CONCERNS_THE_TREE: Final = frozenset({BUDGET_WARNING_EVENT, QUOTA_WARNING_EVENT})


@unique
class Notice(Enum):
    """How people learn of a change."""

    MESSAGE = auto()  # by a message of its own
    SUMMARY = auto()
    NONE = auto()  # the message of the root has it


def notice_of(event: str, reason: str, *, age_seconds: float, is_sub_agent: bool, waits_still: bool) -> Notice:
    """Returns how people learn of a change that is `age_seconds` old. `waits_still`: the wait that it begins lasts."""
    asks = event in _ASKS_A_PERSON
    is_of_the_tree = reason == Reason.SUB_AGENTS_AWAITED or (is_sub_agent and event not in _CONCERNS_THE_TREE)
    if is_of_the_tree and not asks:
        return Notice.NONE
    if age_seconds < LATE_SECONDS or (asks and waits_still):
        return Notice.MESSAGE
    return Notice.SUMMARY


class LateChange(NamedTuple):
    """A change for the summary."""

    event: str
    changed_at: datetime
    task_id: str
    goal: str


def summary_of(late: Iterable[LateChange], former: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the data of a summary, which also has what the `former` one, not sent yet, had."""
    former = former or {}
    changes = sorted(late, key=lambda change: change.changed_at)
    times = [change.changed_at.isoformat() for change in changes]
    tasks = [{"event": one.event, "task_id": one.task_id, "goal": one.goal} for one in changes]
    return {
        "from_at": min([*times[:1], *([former["from_at"]] if former else [])]),
        "to_at": max([*times[-1:], *([former["to_at"]] if former else [])]),
        "events": dict(Counter(former.get("events", {})) + Counter(change.event for change in changes)),
        "tasks": [*former.get("tasks", []), *tasks][-MAX_LISTED:],
    }
