"""Ways to spoil a good history, so that a test can say what the checker must then say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from checker.verify import verify
from tests.unit.checker_history import Story, taken_over

Change = Callable[[Story], seen.History | None]
SOURCES = ["tasks", "entries", "budgets", "bills", "grants", "refusals", "fences", "calls", "effects", "model_calls"]
CLIENTS = ["operations", "subscriptions"]
PARAMETERS = ("story", "change", "invariants", "says", "seen_by_clients")


def fault(
    invariants: str,
    name: str,
    change: Change,
    says: str,
    story: Callable[[], Story] = taken_over,
    *,
    seen_by_clients: bool = False,
) -> Any:
    """A parameter of `check_fault`: `change` bends the story, or gives the history to look at."""
    looks = (story, change, set(invariants.split()), says, seen_by_clients)
    return pytest.param(*looks, id=f"{invariants}: {name}".replace(" ", "_"))


def check_fault(
    story: Callable[[], Story], change: Change, invariants: set[str], says: str, seen_by_clients: bool
) -> None:
    """Good before; afterwards exactly these invariants are broken, and one message has these words.

    What clients saw is left out unless it matters: it would tell of nearly every fault as well.
    """
    assert verify(story().history()) == []
    bent = story()
    history = change(bent) or bent.history()
    if not seen_by_clients:
        history = replace(history, operations=None, subscriptions=None, settled=False)
    violations = verify(history)
    assert {each.invariant for each in violations} == invariants, "\n".join(map(str, violations))
    assert any(says in each.message for each in violations), "\n".join(map(str, violations))


def first(story: Story, kind: type, number: int = 0) -> int:
    """The index of an entry, by its kind."""
    return [index for index, entry in enumerate(story.entries) if isinstance(entry.body, kind)][number]


def renumber(story: Story) -> None:
    """Sequences without gaps, after entries were moved about."""
    story.entries = [replace(entry, sequence=number) for number, entry in enumerate(story.entries, 1)]


def entry(kind: type, number: int = 0, **changes: Any) -> Change:
    """One entry is another."""

    def change(story: Story) -> None:
        index = first(story, kind, number)
        story.entries[index] = replace(story.entries[index], **changes)

    return change


def body(kind: type, number: int = 0, **changes: Any) -> Change:
    """One entry says something else."""

    def change(story: Story) -> None:
        index = first(story, kind, number)
        bent: Any = replace(story.entries[index].body, **changes)  # type: ignore[type-var]  # bodies are dataclasses
        story.entries[index] = replace(story.entries[index], body=bent)

    return change


def record(source: str, index: int = 0, **changes: Any) -> Change:
    """One record of a source is another."""

    def change(story: Story) -> seen.History:
        history = story.history()
        records = list(getattr(history, source))
        records[index] = replace(records[index], **changes)
        return replace(history, **{source: tuple(records)})  # type: ignore[arg-type]  # any of its sources

    return change


def call(call_id: str, **changes: Any) -> Change:
    """The tools have another record of a call."""

    def change(story: Story) -> None:
        story.calls[call_id] = replace(story.calls[call_id], **changes)

    return change


def joined(one: seen.History, other: seen.History) -> seen.History:
    """The tasks of both."""
    both = {name: (*(getattr(one, name) or ()), *(getattr(other, name) or ())) for name in SOURCES + CLIENTS}
    return replace(one, **both)  # type: ignore[arg-type]  # sources only
