"""SetToolRule and DeleteToolRule: the rules of a tenant change one after the other."""

from __future__ import annotations

from typing import Final

from services.tools.rules.book import RuleBook
from services.tools.statements import RULES
from tenure.domain.errors import FieldViolation, InvalidRequest, LimitReached
from tenure.domain.tool_rules import MAX_RULES, ToolRule, problems_of_rule
from tenure.runtime.expressions import Expressions
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import admin_service_pb2 as pb
from tenure.v1 import tool_pb2
from tenure.wire.common import timestamp
from tenure.wire.tool_rules import rule_to_domain, rule_to_wire

_FIELD: Final = "tool_rule"


async def checked_rule(expressions: Expressions, message: tool_pb2.ToolRule) -> ToolRule:
    """Returns a rule that can be decided. Raises InvalidRequest with all its faults, and the place in an expression."""
    rule = rule_to_domain(message)
    problems = list(problems_of_rule(rule))
    if rule.when:
        fault = await expressions.problem(rule.when)
        problems += [("when", fault)] if fault else []
    if problems:
        raise InvalidRequest(violations=[FieldViolation(f"{_FIELD}.{name}", why) for name, why in problems])
    return rule


class RuleChanges:
    """Changes rules. A change holds at this replica when it is answered."""

    def __init__(self, pool: Pool, book: RuleBook, expressions: Expressions) -> None:
        self._pool, self._book, self._expressions = pool, book, expressions

    async def set(self, tenant: str, request: pb.SetToolRuleRequest) -> tool_pb2.ToolRule:
        """Creates or replaces a rule. Raises InvalidRequest, and LimitReached (TOO_MANY_TOOL_RULES)."""
        rule = await checked_rule(self._expressions, request.tool_rule)
        kept = rule_to_wire(rule)

        async def work(postgres: Connection) -> tool_pb2.ToolRule:
            version = await _next_version(postgres, tenant)
            row = {"tenant": tenant, "name": rule.name, "rule": kept.SerializeToString()}
            cursor = await postgres.execute(RULES.set_rule, {**row, "version": version, "actor": request.actor})
            [(updated_at,)] = await cursor.fetchall()
            if await _count(postgres, tenant) > MAX_RULES:
                message = f"the tenant has {MAX_RULES} rules on tool calls, the most that it may have: delete one first"
                raise LimitReached(message, reason="TOO_MANY_TOOL_RULES")
            shown = tool_pb2.ToolRule(version=version, changed_by=request.actor, update_time=timestamp(updated_at))
            shown.MergeFrom(kept)
            return shown

        changed = await in_transaction(self._pool, work)
        await self._book.refresh()
        return changed

    async def delete(self, tenant: str, name: str) -> bool:
        """Deletes a rule and what it has counted. Returns whether it existed."""
        parameters = {"tenant": tenant, "name": name}

        async def work(postgres: Connection) -> bool:
            await _next_version(postgres, tenant)
            deleted = await (await postgres.execute(RULES.delete_rule, parameters)).fetchone()
            await postgres.execute(RULES.delete_counters, parameters)
            await _count(postgres, tenant)
            return deleted is not None

        was_deleted = await in_transaction(self._pool, work)
        await self._book.refresh()
        return was_deleted


async def _next_version(postgres: Connection, tenant: str) -> int:
    [(version, _)] = await (await postgres.execute(RULES.next_version, {"tenant": tenant})).fetchall()
    return int(version)


async def _count(postgres: Connection, tenant: str) -> int:
    [(count,)] = await (await postgres.execute(RULES.count_rules, {"tenant": tenant})).fetchall()
    return int(count)
