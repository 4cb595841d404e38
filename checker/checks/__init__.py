"""The list of all checks, from the modules of this package."""

from __future__ import annotations

from typing import Final

from checker.check import Check, SumCheck
from checker.checks import budgets, clients, effect_keys, fencing, ledger, task_trees, tool_calls

CHECKS: Final[tuple[Check | SumCheck, ...]] = (
    *fencing.CHECKS,
    *ledger.CHECKS,
    *tool_calls.CHECKS,
    *effect_keys.CHECKS,
    *budgets.CHECKS,
    *clients.CHECKS,
    *task_trees.CHECKS,
)
