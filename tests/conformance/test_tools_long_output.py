"""Outputs that are too long for the model: shown in part, kept whole in the workspace, read in pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.tools.sandbox import Detection
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.wire.tool import outcome_to_domain
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient, execute_request
from tests.support.patience import CALL_SECONDS
from tests.support.sweeps import first

LINES = "".join(f"line {number}: ü\n" for number in range(8000))
PROGRAM = "for number in range(8000): print(f'line {number}: ü')"
LIMIT_BYTES = 2000


async def limited(
    tools: Any, owner: Any, call_id: str, tool: str, limit_bytes: int = LIMIT_BYTES, **arguments: Any
) -> Outcome:
    """What the call came to, for a caller that can use so much of its output."""
    request = execute_request(owner, call_id, tool, json.dumps(arguments))
    request.output_limit_bytes = limit_bytes
    events = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
    return outcome_to_domain(events[-1].outcome)


async def test_long_output_is_cut_and_kept_whole(
    tools: ToolClient, grants: Grants, outside: Outside, sandbox_detection: Detection
) -> None:
    owner = grants.claim()
    outcome = await limited(tools, owner, "3.0", "execute_python", code=PROGRAM)
    assert (outcome.status, outcome.truncated, outcome.output_path) == (
        OutcomeStatus.SUCCEEDED,
        True,
        "outputs/3.0.txt",
    )
    assert len(outcome.content.encode()) <= LIMIT_BYTES
    assert outcome.content.startswith("line 0: ü\nline 1: ü")
    assert outcome.content.rstrip().endswith("line 7999: ü")
    assert "outputs/3.0.txt" in outcome.content
    assert (outside.workspace(owner) / "outputs" / "3.0.txt").read_text() == LINES.rstrip("\n")
    again = await limited(tools, owner, "3.0", "execute_python", limit_bytes=5000, code=PROGRAM)
    assert again == outcome


async def test_a_file_is_read_in_pieces_that_make_it_whole(tools: ToolClient, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="a.txt", content=LINES)
    pieces, offset, number = [], 0, 0
    while True:
        number += 1
        outcome = await tools.outcome(owner, f"2.{number}", "read_file", path="a.txt", offset=offset, limit=30_001)
        text, _, note = outcome.content.rpartition("\n[")
        if "; continue with offset " not in note:
            break
        assert (outcome.truncated, outcome.output_path) == (False, "")
        pieces.append(text)
        offset = int(note.removesuffix("]").rpartition(" ")[2])
    assert "".join([*pieces, outcome.content]) == LINES
    assert number > 3
    beyond = await tools.outcome(owner, "3.0", "read_file", path="a.txt", offset=10_000_000)
    assert (beyond.status, beyond.content) == (OutcomeStatus.SUCCEEDED, "")


@pytest.mark.parametrize("obstacle", first(["link", "full", "file"]))
async def test_output_that_cannot_be_kept_is_cut(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    sandbox_detection: Detection,
    obstacle: str,
    tmp_path: Path,
) -> None:
    tools = await tool_service(workspace_bytes=16 * 1024 if obstacle == "full" else 1024 * 1024)
    owner = grants.claim()
    workspace = outside.workspace(owner)
    workspace.mkdir(parents=True)
    if obstacle == "link":
        (workspace / "outputs").symlink_to(tmp_path)
    elif obstacle == "file":
        (workspace / "outputs").write_text("in the way")
    outcome = await limited(tools, owner, "3.0", "execute_python", code=PROGRAM)
    assert (outcome.status, outcome.truncated, outcome.output_path) == (OutcomeStatus.SUCCEEDED, True, "")
    assert "They were not kept." in outcome.content
    assert len(outcome.content.encode()) <= LIMIT_BYTES
    assert not (tmp_path / "3.0.txt").exists()


async def test_call_is_rerun_after_a_crash_between_file_and_record(
    tool_service: StartTools, grants: Grants, outside: Outside, sandbox_detection: Detection
) -> None:
    """The call is run again, and its outcome speaks of the file of that run."""
    first = await tool_service(failpoints="tools.after_effect=kill9")
    owner = grants.claim()
    lost = first.begin(owner, "3.0", "execute_python", code=PROGRAM)
    await first.ended()
    assert isinstance((await _ending(lost)), Exception)
    outcome = await limited(await tool_service(), owner, "3.0", "execute_python", code=PROGRAM)
    assert (outcome.status, outcome.call_attempt, outcome.output_path) == (
        OutcomeStatus.SUCCEEDED,
        2,
        "outputs/3.0-2.txt",
    )
    assert (outside.workspace(owner) / outcome.output_path).read_text() == LINES.rstrip("\n")


async def _ending(call: Any) -> Any:
    try:
        return await call
    except Exception as error:  # noqa: BLE001  whatever a caller hears of a runner that died
        return error
