"""The guards, each with the edit that takes it away, and the invariant by which the checker must notice that.

`python -m tests.fault.mutants --list` prints them as a table. tests/fault/mutation_scenarios.py has a run for each.
"""

from __future__ import annotations

from tests.fault.mutants import (
    of_resolutions,
    of_the_ledger,
    of_the_tools,
    of_their_callers,
)

_ALL = (
    *of_the_ledger.MUTATIONS,
    *of_the_tools.MUTATIONS,
    *of_resolutions.MUTATIONS,
    *of_their_callers.MUTATIONS,
)
MUTATIONS = {mutation.name: mutation for mutation in _ALL}


def table() -> str:
    """One line each: the mutation, the service, what notices it, and the guard that is missing."""
    rows = [("mutation", "service", "noticed by", "the guard that is taken away")]
    rows += [(each.name, each.service, " ".join(each.invariants) or "the test", each.guard) for each in _ALL]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) + "\n"
        for row in rows
    )
