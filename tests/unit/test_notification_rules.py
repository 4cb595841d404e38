"""The rules of messages to people: which changes get one, and what a summary says of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from tenure.domain.notifications import LATE_SECONDS, MAX_LISTED, LateChange, Notice, notice_of, summary_of

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("event", "reason", "is_sub_agent", "expected"),
    [
        ("task.succeeded", "FINAL_ANSWER", False, Notice.MESSAGE),
        ("task.succeeded", "FINAL_ANSWER", True, Notice.NONE),
        ("task.failed", "MODEL_REJECTED", True, Notice.NONE),
        ("task.waiting_user", "APPROVAL_REQUESTED", True, Notice.MESSAGE),
        ("task.wait_escalated", "WAIT_ESCALATED", True, Notice.MESSAGE),
        ("task.budget_warning", "BUDGET_WARNING", True, Notice.MESSAGE),
        ("task.waiting_external", "SUB_AGENTS_AWAITED", False, Notice.NONE),
        ("task.waiting_external", "EVENT_AWAITED", False, Notice.MESSAGE),
    ],
)
def test_message_is_of_a_root_or_asks(event: str, reason: str, is_sub_agent: bool, expected: Notice) -> None:
    assert notice_of(event, reason, age_seconds=0.0, is_sub_agent=is_sub_agent, waits_still=False) is expected


@pytest.mark.parametrize("is_sub_agent", [False, True])
def test_late_change_is_in_the_summary_unless_it_still_asks(is_sub_agent: bool) -> None:
    late = partial(notice_of, age_seconds=LATE_SECONDS, is_sub_agent=is_sub_agent)
    assert late("task.waiting_user", "APPROVAL_REQUESTED", waits_still=True) is Notice.MESSAGE
    assert late("task.waiting_user", "APPROVAL_REQUESTED", waits_still=False) is Notice.SUMMARY
    assert late("task.budget_warning", "BUDGET_WARNING", waits_still=True) is Notice.SUMMARY


def test_summary_counts_all_and_names_the_newest() -> None:
    changes = [
        LateChange("task.succeeded", NOON + timedelta(minutes=minute), str(minute), "") for minute in range(MAX_LISTED)
    ]
    former = summary_of(changes[5:])
    result = summary_of([*changes[:5], LateChange("task.failed", NOON + timedelta(hours=1), "last", "pay")], former)
    assert (result["from_at"], result["to_at"]) == ("2026-11-22T12:00:00+00:00", "2026-11-22T13:00:00+00:00")
    assert result["events"] == {"task.succeeded": MAX_LISTED, "task.failed": 1}
    assert len(result["tasks"]) == MAX_LISTED
    assert result["tasks"][-1] == {"event": "task.failed", "task_id": "last", "goal": "pay"}
