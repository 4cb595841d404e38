"""The list of all checks, from the modules of this package."""

from __future__ import annotations

from typing import Final

from checker.check import Check, SumCheck
from checker.checks import (
    bounds,
    budgets,
    clients,
    effect_keys,
    fencing,
    ledger,
    receipts,
    source_lines,
    stops,
    task_trees,
    tool_calls,
    undos,
)

CHECKS: Final[tuple[Check | SumCheck, ...]] = (
    *fencing.CHECKS,
    *ledger.CHECKS,
    *tool_calls.CHECKS,
    *receipts.CHECKS,
    *effect_keys.CHECKS,
    *budgets.CHECKS,
    *clients.CHECKS,
    *task_trees.CHECKS,
    *undos.CHECKS,
    *stops.CHECKS,
    *bounds.CHECKS,
    *source_lines.CHECKS,
)
