"""Converts plans of calls."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable

from tenure.domain.tools import PlannedCalls
from tenure.v1 import tool_pb2
from tenure.wire.codec import pair

plan_to_wire, plan_to_domain = pair(PlannedCalls, tool_pb2.CallPlan, rename={"lasts_seconds": "lasts"}, defaults=True)


def plans_to_text(plans: Iterable[tool_pb2.CallPlan]) -> tuple[str, ...]:
    """Returns plans as the JSON of a claim keeps them."""
    return tuple(b64encode(plan.SerializeToString()).decode() for plan in plans)


def plans_of_text(texts: Iterable[str]) -> tuple[PlannedCalls, ...]:
    """Returns the plans that `plans_to_text` wrote."""
    return tuple(plan_to_domain(tool_pb2.CallPlan.FromString(b64decode(text))) for text in texts)
