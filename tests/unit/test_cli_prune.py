"""What `tenure admin prune` says of the tasks that it deletes, or would delete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.cli.admin import _show_prune
from tenure.cli.context import Context
from tenure.cli.output import make_console


@pytest.mark.parametrize(
    ("tasks", "dry_run", "text"),
    [
        (500, True, "500 tasks or more would be pruned"),
        (499, True, "499 tasks would be pruned"),
        (500, False, "500 tasks pruned; their bills stay"),
    ],
)
def test_a_preview_that_is_cut_short_says_so(
    tasks: int, dry_run: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    context = Context("", "", False, Path(), make_console(), {})
    _show_prune(context, [f"task-{number}" for number in range(tasks)], dry_run=dry_run)
    assert capsys.readouterr().out.splitlines()[-1] == text
