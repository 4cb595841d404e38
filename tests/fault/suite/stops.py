"""An operator who stops something in the middle of a seed, and a tenant whose rules bound its calls.

The client log has the answers: the checker compares them with the calls that began.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from checker.history import StopRecord
from tenure.domain.errors import NotFound, TryLater
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import tool_pb2
from tests.fault.suite.prunes import until_answered
from tests.fault.suite.schedule import PlannedStop
from tests.fault.suite.traffic import Traffic

CALL_SECONDS: Final = 15.0
PAUSE_SECONDS: Final = 0.3
RULES_SECONDS: Final = 2.0
"""After so long each replica of the tool service knows that the tenant has rules."""
REASON: Final = "a seed"


async def stop_and_resume(traffic: Traffic, planned: PlannedStop) -> None:
    """Stops at its time, for so long once all services have confirmed it, or without that."""
    await asyncio.sleep(planned.at)
    if await _stopped(traffic, planned):
        selectors = planned.selectors
        answered = StopRecord(
            answered_at=time.time(),
            tenant=selectors.get("tenant", ""),
            queue=selectors.get("queue", ""),
            tool=selectors.get("tool", ""),
        )
        traffic.log.stops.append(answered)
        await asyncio.sleep(planned.seconds)
        traffic.log.stops[-1] = replace(traffic.log.stops[-1], ended_at=time.time())
    await resume(traffic, planned)


async def resume(traffic: Traffic, planned: PlannedStop) -> None:
    """Ends the stop, until that is answered. It may have ended already, or never have begun."""
    request = admin.EndStopRequest(reason=REASON, all=not planned.selectors, **planned.selectors)
    with suppress(NotFound):
        await until_answered(partial(traffic.users[0].admin.EndStop, request, timeout=CALL_SECONDS))


async def _stopped(traffic: Traffic, planned: PlannedStop) -> bool:
    """Whether all services have confirmed the stop in time."""
    request = admin.BeginStopRequest(reason=REASON, all=not planned.selectors, **planned.selectors)
    ends_at = time.monotonic() + CALL_SECONDS
    while time.monotonic() < ends_at:
        with suppress(TryLater):
            if not (await traffic.users[0].admin.BeginStop(request, timeout=CALL_SECONDS)).unconfirmed:
                return True
        await asyncio.sleep(PAUSE_SECONDS)
    return False


async def set_bounds(traffic: Traffic) -> None:
    """Sets the rules of the guests, and returns when all replicas keep to them."""
    for bound in traffic.schedule.bounds:
        limits = tool_pb2.RuleBounds(count=bound.count, sum_of=bound.sum_of, limit=bound.limit, per=bound.per)
        rule = tool_pb2.ToolRule(name=bound.name, tool=bound.tool, verdict=tool_pb2.RULE_VERDICT_ALLOW, bounds=limits)
        request = admin.SetToolRuleRequest(tool_rule=rule)
        await until_answered(partial(traffic.guests[0].admin.SetToolRule, request, timeout=CALL_SECONDS))
    if traffic.schedule.bounds:
        await asyncio.sleep(RULES_SECONDS)
    traffic.log.bounds += [replace(bound, since=time.time()) for bound in traffic.schedule.bounds]


async def delete_bounds(traffic: Traffic) -> None:
    """Deletes the rules of the guests."""
    traffic.log.bounds = [replace(bound, until=time.time()) for bound in traffic.log.bounds]
    for bound in traffic.schedule.bounds:
        request = admin.DeleteToolRuleRequest(name=bound.name)
        await until_answered(partial(traffic.guests[0].admin.DeleteToolRule, request, timeout=CALL_SECONDS))
