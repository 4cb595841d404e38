"""Turns the event of a delivery into a text for people, by one template per event type.

The texts of a task (goal, question, result) come from agents and users: they are bounded, and without control
characters. The arguments of a tool call never become part of a text: more people may read a channel or a mailbox than
may read the ledger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tenure.domain.approvals import AnswerLink
from tenure.domain.budget import NANO_USD, WARNING_PERCENT, money_text
from tenure.domain.notifications import SUMMARY_EVENT
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.texts import one_line, shortened
from tenure.domain.waits import CONTINUE, WAIT_RULES, WaitKind
from tenure.domain.webhooks import (
    BUDGET_WARNING_EVENT,
    CANCEL_REQUESTED_EVENT,
    MISSED_EVENT,
    QUOTA_WARNING_EVENT,
    TEST_EVENT,
    WAIT_ESCALATED_EVENT,
    state_event,
)

MAX_TITLE_CHARACTERS: Final = 140
MAX_FACT_CHARACTERS: Final = 300
MAX_SECTION_CHARACTERS: Final = 2000
MAX_LISTED: Final = 20
_GOAL_IN_TITLE_CHARACTERS: Final = 80
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_WAIT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}\Z")
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")


class NotificationSection(NamedTuple):
    """A longer text below its heading."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class Notification:
    """A text for people. `facts` are (label, value) on one line each; `commands` are lines for a shell.

    `links` answer the wait; each holder of a link can answer. `console_url` shows the task.
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[NotificationSection, ...] = ()
    commands: tuple[str, ...] = ()
    task_id: str = ""
    happened_at: datetime | None = None
    links: tuple[AnswerLink, ...] = ()
    console_url: str = ""


def notification_of(body: str, links: tuple[AnswerLink, ...] = ()) -> Notification:
    """Returns the text for the body of a delivery. An unknown event type, and missing fields, give a shorter text."""
    event = _Event(json.loads(body))
    template = _TEMPLATES.get(event.type, _other)
    return replace(template(event), links=links, console_url=event.text("data", "console_url"))


def paragraphs(text: str, most: int) -> str:
    """Returns at most `most` characters; keeps line breaks, and no other character that cannot be shown."""
    shown = "".join(one if one.isprintable() or one == "\n" else " " for one in text[: 4 * most])
    return shortened(re.sub(r"\n{3,}", "\n\n", shown).strip(), most)


class _Event:
    """Reads the JSON of a delivery. A missing field, or one of another type, is empty."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self.type = self.text("type")

    def get(self, *path: str) -> Any:
        value = self._body
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def text(self, *path: str) -> str:
        value = self.get(*path)
        return value if isinstance(value, str) else ""

    def number(self, *path: str) -> float:
        value = self.get(*path)
        return value if isinstance(value, (int, float)) else 0

    def money(self, *path: str) -> str:
        return money_text(round(self.number(*path) * NANO_USD))

    def texts(self, *path: str) -> list[str]:
        value = self.get(*path)
        return [one for one in value if isinstance(one, str)][:MAX_LISTED] if isinstance(value, list) else []

    def task(self, *path: str) -> str:
        return self.text("data", "task", *path)

    def wait(self, *path: str) -> str:
        return self.task("wait", *path)

    def moment(self, *path: str) -> datetime | None:
        try:
            moment = datetime.fromisoformat(self.text(*path))
        except ValueError:
            return None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

    def time(self, *path: str) -> str:
        """Returns `2026-11-22 08:00 UTC`, or nothing."""
        moment = self.moment(*path)
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment is not None else ""

    @property
    def task_id(self) -> str:
        return self.text("data", "task_id")

    @property
    def state(self) -> str:
        return self.text("data", "state")

    def command(self, arguments: str) -> str:
        """Returns a command of `tenure` for this task's tenant."""
        tenant = self.task("tenant")
        named = f" --tenant {tenant}" if tenant not in {"", "default"} and _TENANT.match(tenant) else ""
        return f"tenure{named} {arguments}"

    def task_commands(self, *verbs: str) -> tuple[str, ...]:
        """Returns one command per verb. Other ids than UUIDs get none: a person pastes these lines into a shell."""
        return tuple(self.command(f"{verb} {self.task_id}") for verb in verbs) if _UUID.match(self.task_id) else ()


def _make(
    event: _Event,
    headline: str,
    *,
    facts: Iterable[tuple[str, str]] = (),
    sections: Iterable[tuple[str, str]] = (),
    commands: tuple[str, ...] = (),
) -> Notification:
    """Bounds all texts, and adds what every notification of a task has."""
    goal = one_line(event.task("goal"), _GOAL_IN_TITLE_CHARACTERS)
    reason = one_line(event.text("data", "reason"), MAX_FACT_CHARACTERS)
    state = f"{event.state} ({reason})" if reason else event.state
    tenant = event.task("tenant")
    every_fact = (
        ("Task", event.task_id),
        ("Tenant", "" if tenant == "default" else tenant),
        ("State", state),
        ("Since then", _moved_on(event)),
        *facts,
    )
    return Notification(
        title=one_line(f"{headline}: {goal}" if goal else headline, MAX_TITLE_CHARACTERS),
        facts=tuple((label, shown) for label, value in every_fact if (shown := one_line(value, MAX_FACT_CHARACTERS))),
        sections=tuple(
            NotificationSection(heading, shown)
            for heading, text in sections
            if (shown := paragraphs(text, MAX_SECTION_CHARACTERS))
        ),
        commands=commands,
        task_id=event.task_id,
        happened_at=event.moment("timestamp"),
    )


def _moved_on(event: _Event) -> str:
    """Returns the task's later state: a delivery may be written after the next transition."""
    later = event.task("state")
    return f"the task is {later}" if later and event.state and later != event.state else ""


# Waits.

_DEADLINES: Final = {
    "TIME_OUT": ", then the task times out",
    "GO_ON": ", then the agent continues without an answer",
}


def _headline(kind: str, unknown: str = "An answer is needed") -> str:
    return WAIT_RULES[WaitKind(kind)].headline if kind in WAIT_RULES else unknown


def _waiting(event: _Event) -> Notification:
    kind = event.wait("kind")
    return _wait(event, kind, _headline(kind, "Waiting"))


def _waiting_user(event: _Event) -> Notification:
    if event.text("data", "reason") == Reason.TOOL_IN_DOUBT:
        return _in_doubt(event)
    kind = event.wait("kind")
    return _wait(event, kind, _headline(kind))


def _escalated(event: _Event) -> Notification:
    kind = event.wait("kind")
    return _wait(event, kind, f"Still no answer. {_headline(kind)}")


def _wait(event: _Event, kind: str, headline: str) -> Notification:
    deadline = event.time("data", "task", "wait", "deadline_at")
    then = ", then the task ends at its cap" if kind == "BUDGET" else _DEADLINES.get(event.wait("at_deadline"), "")
    return _make(
        event,
        headline,
        facts=(
            ("Assigned to", event.wait("assignee")),
            ("May answer", ", ".join(event.texts("data", "task", "wait", "approvers"))),
            ("Deadline", deadline and deadline + then),
            ("Tool", ", ".join(_tools(event)) or event.wait("tool")),
            ("Reference", event.wait("reference")),
            ("Event", event.wait("correlation_id")),
            ("Options", ", ".join(event.texts("data", "task", "wait", "options"))),
        ),
        sections=(("Question", event.wait("question")), ("Context", event.wait("context"))),
        commands=_answers(event, kind),
    )


def _tools(event: _Event) -> list[str]:
    """Returns the tools of a wait for several calls, in the order of the calls."""
    calls = event.get("data", "task", "wait", "calls")
    tools = [call.get("tool") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [tool for tool in tools if isinstance(tool, str)][:MAX_LISTED]


def _answers(event: _Event, kind: str) -> tuple[str, ...]:
    """Returns the commands that show and answer the wait."""
    shows = event.task_commands("get")
    wait_id = event.wait("wait_id")
    if not (shows and _WAIT_ID.match(wait_id)) or kind in {"EVENT", "SUB_AGENTS"}:
        return shows
    options = event.texts("data", "task", "wait", "options")
    if options == [CONTINUE]:
        flags = [f"--option {CONTINUE}"]
    elif kind == "TOOL_APPROVAL" and _tools(event):
        flags = ["--approve --all", "--deny --all"]
    elif kind == "TOOL_APPROVAL" or set(options) == {"approve", "deny"}:
        flags = ["--approve", "--deny"]
    else:
        flags = ["--option OPTION"] if options else ["--reply TEXT"]
    return (*shows, *(event.command(f"resume {event.task_id} --wait {wait_id} {flag}") for flag in flags))


def _in_doubt(event: _Event) -> Notification:
    return _make(
        event,
        "Calls in doubt",
        sections=(("What happened", event.task("message")),),
        commands=event.task_commands("tools in-doubt --task", "explain"),
    )


# Ends and warnings.

_ENDS: Final = {
    TaskState.SUCCEEDED: "Succeeded",
    TaskState.FAILED: "Failed",
    TaskState.TIMED_OUT: "Timed out",
    TaskState.CANCELLED: "Cancelled",
    TaskState.COST_EXCEEDED: "Stopped at its limit",
}


def _ended(event: _Event) -> Notification:
    headline = next((name for state, name in _ENDS.items() if event.type == state_event(state)), "Ended")
    is_success = event.type == state_event(TaskState.SUCCEEDED)
    return _make(
        event,
        headline,
        facts=(
            ("Cost", _cost(event)),
            ("Steps", str(event.number("data", "task", "step") or "")),
            ("Sub-agents", _counted(event.get("data", "sub_agents"))),
            ("Whole tree", _tree_cost(event)),
        ),
        sections=(
            ("Message", event.task("message")),
            ("Result", _result(event)),
        ),
        commands=event.task_commands("get") if is_success else event.task_commands("explain"),
    )


def _result(event: _Event) -> str:
    value = event.get("data", "task", "result_data")
    if value is None:
        return event.task("result")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cost(event: _Event) -> str:
    """Returns what the task itself used; empty when the delivery has no task."""
    if not isinstance(event.get("data", "task"), dict):
        return ""
    tokens = sum(
        event.number("data", "task", "usage", name)
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    unpriced = event.number("data", "task", "budget", "unpriced_calls")
    without = f" (without {unpriced:,} calls whose price is unknown)" if unpriced else ""
    return f"{event.money('data', 'task', 'cost_usd')}{without}, {tokens:,} tokens"


def _counted(counts: Any, name: Callable[[str], str] = str) -> str:
    """Returns `3 SUCCEEDED, 1 FAILED`, the largest number first."""
    if not isinstance(counts, dict):
        return ""
    numbers = [(count, name(key)) for key, count in counts.items() if isinstance(count, int)]
    return ", ".join(f"{count:,} {key}" for count, key in sorted(numbers, key=lambda one: (-one[0], one[1])))


def _tree_cost(event: _Event) -> str:
    """Returns what the task and its sub-agents used together; empty for a task without sub-agents."""
    return event.money("data", "task", "budget", "used_cost_usd") if event.get("data", "sub_agents") else ""


def _budget_warning(event: _Event) -> Notification:
    budget = ("data", "task", "budget")
    used, most = event.number(*budget, "used_cost_usd"), event.number(*budget, "max_cost_usd")
    tokens, most_tokens = event.number(*budget, "used_tokens"), event.number(*budget, "max_tokens")
    unpriced = event.number(*budget, "unpriced_calls")
    is_near = not unpriced or any(
        most and 100 * used >= WARNING_PERCENT * most for used, most in ((used, most), (tokens, most_tokens))
    )
    return _make(
        event,
        "The budget runs out" if is_near else "The cap in money does not hold for calls without a price",
        facts=(
            (
                "Money",
                f"{event.money(*budget, 'used_cost_usd')} of {event.money(*budget, 'max_cost_usd')}" if most else "",
            ),
            ("Tokens", f"{tokens:,} of {most_tokens:,}" if most_tokens else ""),
            ("Calls without a price", f"{unpriced:,}" if unpriced else ""),
        ),
        sections=(("Message", event.task("message")),),
        commands=event.task_commands("explain", "admin grant-budget --reason REASON --dollars DOLLARS"),
    )


def _quota_warning(event: _Event) -> Notification:
    return _make(event, "The tenant's quota runs out", commands=event.task_commands("explain"))


def _cancel_requested(event: _Event) -> Notification:
    return _make(event, "An end was requested", commands=event.task_commands("explain"))


# Events of no task, and the rest.


def _test(event: _Event) -> Notification:
    name = one_line(event.text("data", "name"), MAX_FACT_CHARACTERS)
    return Notification(
        one_line(f"Test of the webhook {name}", MAX_TITLE_CHARACTERS), happened_at=event.moment("timestamp")
    )


def _summary(event: _Event) -> Notification:
    """Changes that were old when the service read them: a pause of the webhook, or an outage, came before."""
    counts = event.get("data", "events")
    tasks = event.get("data", "tasks")
    lines = [
        f"{_event_name(one['event'])}: {one_line(one['goal'], _GOAL_IN_TITLE_CHARACTERS)} ({one['task_id']})"
        for one in (tasks if isinstance(tasks, list) else [])
        if isinstance(one, dict) and all(isinstance(one.get(name), str) for name in ("event", "goal", "task_id"))
    ]
    total = sum(count for count in counts.values() if isinstance(count, int)) if isinstance(counts, dict) else 0
    facts = (
        ("From", event.time("data", "from_at")),
        ("To", event.time("data", "to_at")),
        ("Changes", one_line(_counted(counts, _event_name), MAX_FACT_CHARACTERS)),
    )
    newest = paragraphs("\n".join(reversed(lines)), MAX_SECTION_CHARACTERS)
    return Notification(
        one_line(f"{total:,} earlier changes of tasks", MAX_TITLE_CHARACTERS),
        tuple(fact for fact in facts if fact[1]),
        (NotificationSection("The newest", newest),) if newest else (),
        ("tenure list",),
        happened_at=event.moment("timestamp"),
    )


def _event_name(event_type: str) -> str:
    return one_line(event_type.rpartition(".")[2].replace("_", " "), _GOAL_IN_TITLE_CHARACTERS)


def _missed(event: _Event) -> Notification:
    facts = (("From", event.time("data", "from_at")), ("To", event.time("data", "to_at")))
    return Notification(
        "Changes may be missing",
        tuple(fact for fact in facts if fact[1]),
        (
            NotificationSection(
                "What to do", "Changes in this period were not sent. List the tasks to learn their states."
            ),
        ),
        ("tenure list",),
        happened_at=event.moment("timestamp"),
    )


def _other(event: _Event) -> Notification:
    name = _event_name(event.type)
    headline = f"Task {name}" if name else "Task changed"
    return _make(
        event, headline, sections=(("Message", event.task("message")),), commands=event.task_commands("explain")
    )


_TEMPLATES: Final[dict[str, Callable[[_Event], Notification]]] = {
    state_event(TaskState.WAITING_USER): _waiting_user,
    state_event(TaskState.WAITING_EXTERNAL): _waiting,
    WAIT_ESCALATED_EVENT: _escalated,
    **{state_event(state): _ended for state in TERMINAL},
    BUDGET_WARNING_EVENT: _budget_warning,
    QUOTA_WARNING_EVENT: _quota_warning,
    CANCEL_REQUESTED_EVENT: _cancel_requested,
    TEST_EVENT: _test,
    MISSED_EVENT: _missed,
    SUMMARY_EVENT: _summary,
}
