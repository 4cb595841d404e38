"""Execute over a real database and real sockets: one run, one record, one answer."""

from __future__ import annotations

import pytest

from tenure.domain.tools import OutcomeStatus


async def test_a_call_is_executed_once(tool_service, grants, outside):
    tools = await tool_service()
    owner = grants.claim()
    events = await tools.events(owner, "1.0", "append_record", file="a", line="x")
    assert [event.WhichOneof("event") for event in events] == ["started", "outcome"]
    assert [line["line"] for line in outside.lines("a")] == ["x"]
