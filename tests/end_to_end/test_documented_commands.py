"""docs/commands.md shows what the commands say."""

from __future__ import annotations

import uuid

import pytest

from tests.end_to_end.documented import PAGE, Terminal, normal, steps_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


async def test_every_documented_command_says_what_the_page_shows(installation, tmp_path):
    terminal = Terminal(installation, tmp_path, f"page-{uuid.uuid4().hex[:8]}")
    for step in steps_of(PAGE.read_text()):
        output = await terminal.run(step)
        told = f"tenure {step.line}: refresh the page with python -m tests.end_to_end.document_commands"
        assert step.is_hidden or normal(output) == normal(step.output), told
