"""How long is said in words, and how a batch is shared out among tasks."""

from __future__ import annotations

from importlib.resources import files

import pytest

from tenure.domain.retention import KEEP_LABEL, Portion, retention_text, share_out


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
def test_a_time_is_said_in_the_largest_unit_of_which_it_has_two(seconds: float, words: str) -> None:
    assert retention_text(seconds) == words


def test_a_batch_is_shared_out_to_the_first_and_never_exceeded() -> None:
    tasks = [Portion("a", 3), Portion("b", 10), Portion("c", 4)]
    assert share_out(tasks, 100) == [Portion("a", 0), Portion("b", 0), Portion("c", 0)]
    assert share_out(tasks, 5) == [Portion("a", 0), Portion("b", 8)]
    assert share_out(tasks, 3) == [Portion("a", 0)]
    assert share_out([], 3) == []


def test_the_statements_know_the_label_that_keeps() -> None:
    label = '{{"{}": "{}"}}'.format(*KEEP_LABEL)
    sql = files("services.checkpoint") / "sql"
    migrations = [each.read_text() for each in (sql / "migrations").iterdir() if each.name.endswith("_retention.sql")]
    for text in ((sql / "retention.sql").read_text(), *migrations):
        assert text.count("tenure.retention") == text.count(label) > 0
