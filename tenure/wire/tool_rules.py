"""Converts rules on tool calls."""

from __future__ import annotations

from tenure.domain.tool_rules import RuleBounds, RuleVerdict, ToolRule
from tenure.v1 import tool_pb2
from tenure.wire.codec import pair
from tenure.wire.common import EnumMap

RULE_VERDICTS = EnumMap(RuleVerdict, dict(tool_pb2.RuleVerdict.items()), "RULE_VERDICT", RuleVerdict.DENY)
pair(RuleBounds, tool_pb2.RuleBounds, defaults=True)
rule_to_wire, rule_to_domain = pair(ToolRule, tool_pb2.ToolRule, skip="version update_time changed_by")
