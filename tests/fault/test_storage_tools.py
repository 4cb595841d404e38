"""The disk of the tools is full: their calls say so, nothing half-written is left, and all goes on when there is room.

No disk is filled: the process may make files only so large, which the system tells it in the same places.
"""

from __future__ import annotations

import resource
from typing import Any

import pytest

from tenure.domain.tools import OutcomeStatus
from tests.support.fix_tools import TENANT, Grants, Outside, StartTools

pytestmark = pytest.mark.faults

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
async def tools(tool_service: StartTools) -> Any:
    return await tool_service()


def limit_files(tools: Any, size_bytes: Any) -> None:
    resource.prlimit(tools.process.pid, resource.RLIMIT_FSIZE, (size_bytes, UNLIMITED))


@pytest.mark.parametrize("room_bytes", [0, 10], ids=["none", "for the beginning of a line"])
@pytest.mark.parametrize("tool", ["append_record", "append_record_unsafe"])
async def test_a_record_without_room_takes_a_whole_line_or_nothing(
    tools: Any, grants: Grants, outside: Outside, tool: str, room_bytes: int
) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", tool, file="a", line="first")
    before = (outside.records / TENANT / "a.jsonl").read_bytes()
    limit_files(tools, len(before) + room_bytes)
    refused = await tools.outcome(owner, "2.0", tool, file="a", line="second")
    assert (refused.status, refused.detail) == (OutcomeStatus.FAILED, "STORAGE_FULL")
    assert (outside.records / TENANT / "a.jsonl").read_bytes() == before
    limit_files(tools, UNLIMITED)
    assert (await tools.outcome(owner, "2.0", tool, file="a", line="second")) == refused, "an outcome stays what it is"
    assert (await tools.outcome(owner, "3.0", tool, file="a", line="third")).status is OutcomeStatus.SUCCEEDED
    assert [line["line"] for line in outside.lines("a")] == ["first", "third"]


async def test_a_full_workspace_is_reported_and_keeps_its_file(tools: Any, grants: Grants, outside: Outside) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", "write_file", path="notes", content="what was there")
    limit_files(tools, 20)
    refused = await tools.outcome(owner, "2.0", "write_file", path="notes", content="x" * 100)
    assert refused.status is OutcomeStatus.FAILED
    assert (outside.workspace(owner) / "notes").read_text() == "what was there"
    assert [path.name for path in outside.workspace(owner).iterdir()] == ["notes"]
    limit_files(tools, UNLIMITED)
    written = await tools.outcome(owner, "3.0", "write_file", path="notes", content="x" * 100)
    assert written.status is OutcomeStatus.SUCCEEDED
    assert (outside.workspace(owner) / "notes").read_text() == "x" * 100
