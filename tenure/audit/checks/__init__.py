"""All checks, by subject."""

from __future__ import annotations

from typing import Final

from tenure.audit.check import Check, SumCheck
from tenure.audit.checks import (
    accounting,
    budgets,
    calls_and_effects,
    conversation,
    fencing,
    forks,
    grants,
    in_doubt,
    refusals,
    roots,
    sequences,
    streams,
    sub_agents,
    submits,
    transitions,
    waits,
)

CHECKS: Final[tuple[Check | SumCheck, ...]] = (
    *grants.CHECKS,
    *fencing.CHECKS,
    *refusals.CHECKS,
    *sequences.CHECKS,
    *calls_and_effects.CHECKS,
    *conversation.CHECKS,
    *budgets.CHECKS,
    *roots.CHECKS,
    *accounting.CHECKS,
    *transitions.CHECKS,
    *streams.CHECKS,
    *submits.CHECKS,
    *forks.CHECKS,
    *waits.CHECKS,
    *sub_agents.CHECKS,
    *in_doubt.CHECKS,
)
