"""Rules on tool calls, as a tenant's admin sets them at a tool service."""

from __future__ import annotations

import json
from typing import Any, Final

from tenure.domain.waits import call_digest
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tests.support.fix_tools import ToolClient
from tests.support.patience import CALL_SECONDS

ALLOW: Final = tool_pb2.RULE_VERDICT_ALLOW
ASK: Final = tool_pb2.RULE_VERDICT_ASK
DENY: Final = tool_pb2.RULE_VERDICT_DENY
DAY: Final = 86_400


def rule(name: str, verdict: Any, when: str = "", tool: str = "append_record", **fields: Any) -> tool_pb2.ToolRule:
    """A rule; `count`, `sum_of`, `limit`, `per`, `window` and `beyond` make its bounds."""
    bounds = {key: fields.pop(key) for key in ("count", "sum_of", "limit", "per", "beyond") if key in fields}
    made = tool_pb2.ToolRule(name=name, tool=tool, when=when, verdict=verdict, **_without_window(fields))
    if bounds or "window" in fields:
        made.bounds.CopyFrom(tool_pb2.RuleBounds(**bounds))
        made.bounds.window.FromSeconds(fields.get("window", 0))
    return made


def _without_window(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != "window"}


async def set_rule(tools: ToolClient, made: tool_pb2.ToolRule) -> tool_pb2.ToolRule:
    request = admin_pb.SetToolRuleRequest(tool_rule=made, actor="user/ann")
    response = await tools.stub.SetToolRule(request, timeout=CALL_SECONDS)
    kept: tool_pb2.ToolRule = response.tool_rule
    return kept


def approval(call_id: str, tool: str, **arguments: Any) -> str:
    """What the ledger adds to a token when a person approves this call."""
    return f"{call_id}:{call_digest(tool, json.dumps(arguments))}"
