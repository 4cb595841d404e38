"""A bank that pays and loses its answer: one payment, and the model reads what truly happened."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.tools import Outcome, OutcomeStatus
from tests.support.bank import Bank, open_bank
from tests.support.fix_tools import Grants, StartTools, ToolReplica

CHECK = {"check_with": {"tool": "find_payment", "arguments": {"key": "/key"}}}
LOST = ["reset", "hang", "500", "503", "empty", "cut", "unread"]
StartBankTools = Callable[..., Awaitable[ToolReplica]]


@pytest.fixture
def bank_tools(tool_service: StartTools, tmp_path: Path) -> StartBankTools:
    """Starts a replica whose tools are those of a bank."""

    async def start(bank: Bank, failpoints: str = "", **tool: Any) -> ToolReplica:
        path = tmp_path / "tools.json"
        path.write_text(json.dumps({"http_tools": bank.config(**tool)}))
        return await tool_service(config_file=path, sandbox_bubblewrap="/nonexistent/bwrap", failpoints=failpoints)

    return start


@pytest.mark.parametrize("end", LOST)
async def test_keyed_call_of_unknown_end_is_repeated(end: str, bank_tools: StartBankTools, grants: Grants) -> None:
    """Whatever loses the answer: the bank is asked again with the same key, until it answers."""
    async with open_bank(*[end] * 6) as bank:
        tools, owner = await bank_tools(bank, timeout_seconds=0.5), grants.claim()
        outcome = await tools.outcome(owner, "1.0", "pay")
        assert (outcome.status, outcome.content) == (OutcomeStatus.SUCCEEDED, "receipt 1")
    assert bank.payments == [f"{owner.task_id}/1.0"]
    assert {asked.key for asked in bank.asked} == set(bank.payments)
    assert len(bank.asked) == 7
