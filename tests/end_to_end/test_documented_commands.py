"""docs/commands.md shows what the commands say after `tenure dev --workers 2`."""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack import StackOptions
from tenure.cli.dev import PATIENT
from tests.end_to_end.documented import PAGE, Terminal, normal, options_of_dev, plain_dev, steps_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(600), pytest.mark.nightly]


async def test_every_documented_command_says_what_the_page_shows(tmp_path: Path) -> None:
    async with plain_dev(tmp_path) as installation:
        terminal = Terminal(installation, tmp_path)
        for step in steps_of(PAGE.read_text()):
            output = await terminal.run(step)
            advice = f"tenure {step.line}: refresh the page with python -m tests.end_to_end.document_commands"
            if not step.is_hidden:
                assert normal(output) == normal(step.output), advice


def test_the_page_is_right_on_every_day_of_the_week() -> None:
    sunday, monday = "next due Sun 2026-11-22 07:00 Europe/Berlin", "next due Mon 2026-11-23 07:00 Europe/Berlin"
    assert normal(sunday) == normal(monday)


def test_the_page_is_run_on_what_tenure_dev_starts_by_itself(tmp_path: Path) -> None:
    plain, usual = options_of_dev(tmp_path), StackOptions(data_dir=tmp_path / "data")
    assert (plain.workers, plain.scenarios, plain.scenario_files, plain.tools_config) == (1, None, (), None)
    assert (plain.model, plain.replicas, plain.slots) == (usual.model, usual.replicas, usual.slots)
    assert {name: each for name, each in plain.environment.items() if name != "*"} == PATIENT
