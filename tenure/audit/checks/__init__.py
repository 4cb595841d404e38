"""All checks, by subject."""

from __future__ import annotations

from typing import Final

from tenure.audit.check import Check, SumCheck
from tenure.audit.checks import fencing, sequences

CHECKS: Final[tuple[Check | SumCheck, ...]] = (*fencing.CHECKS, *sequences.CHECKS)
