"""TryToolRule: decides recorded calls by one rule, in their order, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import UUID

from services.tools.rules.book import listed_rules
from services.tools.rules.changes import checked_rule
from services.tools.rules.evaluating import judge
from services.tools.statements import RULES, like
from tenure.domain.errors import NotFound
from tenure.domain.tool_rules import (
    MAX_ARGUMENT_BYTES,
    Counts,
    RuledCall,
    Ruling,
    ToolRule,
    read_arguments,
)
from tenure.domain.tool_schemas import ShownSchema
from tenure.runtime.expressions import Expressions
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.v1 import admin_service_pb2 as pb
from tenure.wire.common import moment, timestamp
from tenure.wire.tool_rules import RULE_VERDICTS, rule_to_domain

MAX_CALLS: Final = 1000
MAX_SHOWN: Final = 100
LONGEST_SECONDS: Final = 5.0
"""The time for all calls: each may take a moment of processor time."""


class _Recorded(NamedTuple):
    """A row of `recorded_calls`. `arguments`: longer than MAX_ARGUMENT_BYTES if the call has more than rules read."""

    task_id: UUID
    call_id: str
    tool: str
    arguments: bytes
    accepted_at: datetime


FormOf = Callable[[str, str], ShownSchema]
"""The form in which models are shown a tool, by its name and the tenant."""


async def try_rule(pool: Pool, form_of: FormOf, tenant: str, request: pb.TryToolRuleRequest) -> pb.TryToolRuleResponse:
    """Decides the tenant's calls since a time. Raises InvalidRequest, and NotFound (NO_SUCH_TOOL_RULE).

    It has a child process of its own: a thousand calls must not delay those that are being accepted.
    """
    async with Expressions() as expressions:
        rule = await _rule_of(pool, expressions, tenant, request)
        is_of_agent = rule.agent in {"", request.agent}
        rows = await _recorded(pool, tenant, rule.tool, moment(request.since_time)) if is_of_agent else []
        counts, response = Counts[str]({}), pb.TryToolRuleResponse(more=len(rows) > MAX_CALLS)
        ends_at = monotonic() + LONGEST_SECONDS
        for row in rows[:MAX_CALLS]:
            if monotonic() > ends_at:
                response.more = True
                break
            called = partial(_called, row, form_of(row.tool, tenant), tenant, request)
            _note(response, row, await _tried(expressions, rule, row, called, counts))
    return response


async def _rule_of(pool: Pool, expressions: Expressions, tenant: str, request: pb.TryToolRuleRequest) -> ToolRule:
    if request.HasField("tool_rule"):
        return await checked_rule(expressions, request.tool_rule)
    for rule in await listed_rules(pool, tenant):
        if rule.name == request.name:
            return rule_to_domain(rule)
    raise NotFound(f"rule {request.name} not found; `tenure tools rules list` lists them", reason="NO_SUCH_TOOL_RULE")


async def _recorded(pool: Pool, tenant: str, tool: str, since: datetime) -> list[_Recorded]:
    """Returns the calls of the tools that a rule fits: one more than is decided, to learn whether there are more."""
    parameters: Mapping[str, Any] = {
        "tenant": tenant,
        "tools": like(tool),
        "since": since,
        "most_bytes": MAX_ARGUMENT_BYTES,
        "limit": MAX_CALLS + 1,
    }
    async with pool_connection(pool) as postgres:
        return [_Recorded(*row) for row in await (await postgres.execute(RULES.recorded_calls, parameters)).fetchall()]


def _called(row: _Recorded, form: ShownSchema, tenant: str, request: pb.TryToolRuleRequest) -> RuledCall:
    args = read_arguments(row.arguments, form)
    return RuledCall(tenant, str(row.task_id), row.tool, args, request.agent, dict(request.labels))


async def _tried(
    expressions: Expressions, rule: ToolRule, row: _Recorded, called: Callable[[], RuledCall], counts: Counts[str]
) -> Ruling:
    judgement = await judge(expressions, [rule], called, row.accepted_at.timestamp())
    ruling = await judgement.decide(counts, is_approved=False)
    if ruling.outcome is None:
        counts.take(row.call_id, ruling.shares)
    return ruling


def _note(response: pb.TryToolRuleResponse, row: _Recorded, ruling: Ruling) -> None:
    if ruling.outcome is None:
        response.allowed += 1
        return
    response.to_approve += ruling.asks
    response.denied += not ruling.asks
    if len(response.calls) < MAX_SHOWN:
        response.calls.add(
            task_id=str(row.task_id),
            call_id=row.call_id,
            tool=row.tool,
            verdict=RULE_VERDICTS.to_wire(ruling.verdict),
            reason=ruling.outcome.content,
            accept_time=timestamp(row.accepted_at),
        )
