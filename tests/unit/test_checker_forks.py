"""The checker and forks: what was copied is another's, and it must be what stands there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from checker.history import History, LedgerEntry
from checker.verify import examine
from tenure.domain import entries as facts
from tenure.domain.states import Reason, TaskState
from tests.unit.checker_history import TASK, Story, hash_of, taken_over

FORK = "018f0000-0000-7000-8000-000000000002"
COPIED = (facts.ToolsDefined, facts.ModelAttempt, facts.AssistantMessage, facts.ToolIntent, facts.ToolOutcome)


def fork_of(other: Story) -> Story:
    """The task once more, with words, to a final answer of its own."""
    story = Story(task_id=FORK, request_id="fork-1", revision=1000)
    submitted: Any = other.entries[0].body
    story.entry(facts.Submitted(submitted.spec, "fork-1"), owned=False)
    answered = {
        (entry.step, entry.body.attempt_number)
        for entry in other.entries
        if isinstance(entry.body, facts.AssistantMessage)
    }
    pieces = [
        entry
        for entry in other.entries
        if isinstance(entry.body, COPIED)
        and (not isinstance(entry.body, facts.ModelAttempt) or (entry.step, entry.body.attempt_number) in answered)
    ]
    story.entry(facts.Forked(TASK, other.entries[-1].sequence, len(pieces)), owned=False)
    for piece in pieces:
        assert piece.body is not None
        story.entry(piece.body, owned=False, actor=piece.actor, step=piece.step)
    story.step = max(piece.step for piece in pieces)
    story.entry(facts.Transition(TaskState.QUEUED, Reason.FORKED), owned=False)
    story.entry(facts.UserMessage("And then?", "fork-1"), owned=False, actor="tenant/default")
    story.claim("worker-3")
    story.attempt(story.step + 1)
    story.answer()
    story.end()
    return story


def ledgers(*stories: Story) -> History:
    """What the checker needs of them: the row, the entries and the bill."""
    return History(
        tasks=tuple(story.row() for story in stories),
        entries=tuple(entry for story in stories for entry in story.entries),
        budgets=tuple(story.budget() for story in stories),
        bills=tuple(bill for story in stories for bill in story.bills),
        model_calls=tuple(call for story in stories for call in story.model_calls),
        calls=tuple(call for story in stories for call in story.calls.values()),
        effects=tuple(effect for story in stories for effect in story.effects),
    )


def violations(*stories: Story) -> list[tuple[str, str]]:
    return [(violation.invariant, violation.task_id) for violation in examine(ledgers(*stories)).violations]


def copied_entry(story: Story, kind: type) -> int:
    return next(index for index, entry in enumerate(story.entries) if isinstance(entry.body, kind))


def bend(story: Story, index: int, **changes: Any) -> None:
    story.entries[index] = replace(story.entries[index], **changes)


def test_copied_entries_are_not_checked_again() -> None:
    other = taken_over()
    assert violations(other, fork_of(other)) == []


def test_changed_copy_is_reported() -> None:
    other = taken_over()
    fork = fork_of(other)
    bend(fork, copied_entry(fork, facts.ToolOutcome), body_hash=b"another body")
    assert violations(other, fork) == [("I36", FORK)]


def test_copied_entry_with_a_claim_is_reported() -> None:
    other = taken_over()
    fork = fork_of(other)
    bend(fork, copied_entry(fork, facts.AssistantMessage), epoch=fork.holder.epoch, claim_id=fork.holder.claim_id)
    assert ("I36", FORK) in violations(other, fork)


def test_copy_of_another_length_is_reported() -> None:
    other = taken_over()
    fork = fork_of(other)
    body: Any = fork.entries[1].body
    bend(fork, 1, body=replace(body, copied_entries=body.copied_entries - 1))
    assert ("I36", FORK) in violations(other, fork)


def test_second_fork_entry_is_reported() -> None:
    other = taken_over()
    fork = fork_of(other)
    last = fork.entries[-1]
    body = facts.Forked(TASK, 1, 0)
    fork.entries.append(LedgerEntry(task_id=FORK, sequence=last.sequence + 1, body=body, body_hash=hash_of(body)))
    assert ("I36", FORK) in violations(other, fork)


def test_entries_of_the_fork_are_checked() -> None:
    other = taken_over()
    fork = fork_of(other)
    newest = max(index for index, entry in enumerate(fork.entries) if isinstance(entry.body, facts.ModelAttempt))
    bend(fork, newest, epoch=0, claim_id="")
    assert ("I5", FORK) in violations(other, fork)
