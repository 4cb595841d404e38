"""How long is said in words, and how a batch is shared out among tasks."""

from __future__ import annotations

from importlib.resources import files

import pytest

from services.checkpoint.retention_rules import TaskEntries, retention_text, split_batch


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (30 * 86_400.0, "30 days"),
        (2.5 * 86_400, "2.5 days"),
        (86_400.0, "24 hours"),
        (7200, "2 hours"),
        (90, "90 s"),
        (1, "1 s"),
    ],
)
def test_duration_has_its_largest_whole_unit(seconds: float, words: str) -> None:
    assert retention_text(seconds) == words


def test_a_batch_is_shared_out_to_the_first_and_never_exceeded() -> None:
    tasks = [TaskEntries("a", 3), TaskEntries("b", 10), TaskEntries("c", 4)]
    assert split_batch(tasks, 100) == [TaskEntries("a", 0), TaskEntries("b", 0), TaskEntries("c", 0)]
    assert split_batch(tasks, 5) == [TaskEntries("a", 0), TaskEntries("b", 8)]
    assert split_batch(tasks, 3) == [TaskEntries("a", 0)]
    assert split_batch([], 3) == []


def test_the_statements_know_the_label_that_keeps() -> None:
    label = '{"tenure.retention": "keep"}'
    sql = files("services.checkpoint") / "sql"
    migrations = [each.read_text() for each in (sql / "migrations").iterdir() if each.name.endswith("_retention.sql")]
    for text in ((sql / "retention.sql").read_text(), *migrations):
        assert text.count("tenure.retention") == text.count(label) > 0
