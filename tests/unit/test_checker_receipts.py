"""The checker finds what is wrong with the receipts of a task (I42)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from checker import history as seen
from checker.verify import verify
from tenure.domain.receipts import NO_LINK, EffectRecord, link_of
from tenure.domain.tools import CallState, EffectClass
from tests.unit.checker_history import Story, taken_over

MESSAGE_HASH = bytes(range(32))


def with_receipts() -> tuple[Story, list[str]]:
    """A good story whose calls have receipts, as the product computes them, and their ids by number."""
    story = taken_over()
    link, names = NO_LINK, sorted(story.calls)
    story.calls = {name: replace(call, effect_class=EffectClass.UNSAFE) for name, call in story.calls.items()}
    (row,) = story.history().tasks or ()
    for number, name in enumerate(names, 1):
        call = story.calls[name]
        link = link_of(_record(call, number, row.tenant).chained(link))
        story.calls[name] = replace(call, receipt_number=number, receipt_link=link, outcome_message_hash=MESSAGE_HASH)
    return story, names


def _record(call: seen.CallRecord, number: int, tenant: str) -> EffectRecord:
    accepted_at, started_at, finished_at = (
        datetime.fromtimestamp(at or 0.0, UTC) for at in (call.accepted_at, call.started_at, call.finished_at)
    )
    assert call.outcome is not None
    return EffectRecord(
        task_id=call.task_id,
        tenant=tenant,
        call_id=call.call_id,
        tool=call.tool,
        effect_class=call.effect_class,
        arguments_hash=call.arguments_hash,
        call_attempt=call.call_attempt,
        epoch=call.epoch,
        claim_id=call.claim_id,
        accepted_at=accepted_at,
        started_at=started_at,
        finished_at=finished_at,
        outcome_message_hash=MESSAGE_HASH,
        number=number,
        link=b"",
        outcome_status=call.outcome.status,
        outcome_detail="",
        outcome_hash=b"",
    )


def problems(story: Story, *, receipts: int, head: bytes) -> list[str]:
    """The violations of I42."""
    history = story.history()
    fences = tuple(replace(fence, receipts=receipts, receipt_head=head) for fence in history.fences or ())
    assert fences
    return [one.message for one in verify(replace(history, fences=fences)) if one.invariant == "I42"]


def change(name: str, **fields: Any) -> Callable[[Story], None]:
    def bend(story: Story) -> None:
        story.calls[name] = replace(story.calls[name], **fields)

    return bend


def test_good_receipts_break_no_rule() -> None:
    story, names = with_receipts()
    assert len(names) >= 2
    assert problems(story, receipts=len(names), head=story.calls[names[-1]].receipt_link) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"outcome_message_hash": NO_LINK}, "not the one that its receipt 1"),
        ({"tool": "other"}, "not the one that its receipt 1"),
        ({"finished_at": 5.0}, "not the one that its receipt 1"),
        ({"receipt_link": NO_LINK}, "not the one that its receipt 1"),
        ({"receipt_number": 0}, "receipt 1 is missing"),
        ({"receipt_number": 0, "state": CallState.IN_DOUBT}, ""),
    ],
)
def test_changed_record_of_a_receipt_is_found(fields: dict[str, Any], says: str) -> None:
    story, names = with_receipts()
    head = story.calls[names[-1]].receipt_link
    change(names[0], **fields)(story)
    found = problems(story, receipts=len(names), head=head)
    assert any(says in one for one in found) if says else found == []


def test_lost_end_of_a_chain_is_found() -> None:
    story, names = with_receipts()
    link = story.calls[names[-1]].receipt_link
    for receipts, head in ((len(names) + 1, link), (len(names), NO_LINK)):
        assert any("the fence has" in one for one in problems(story, receipts=receipts, head=head))
