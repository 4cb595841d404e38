"""What a mutation is."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fault.mutants.loading import Edit

__all__ = ["Edit", "Mutation"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`guard`: what is missing. `invariants`: any of these must be reported, as checker numbers them.

    `triggers`, as `table.trigger` of the service's database, would stop the service without its guard. They are lifted
    too, for it is not them that the checker is to be tried on.
    """

    name: str
    service: str
    guard: str
    invariants: tuple[str, ...]
    edits: tuple[Edit, ...]
    triggers: tuple[str, ...] = ()
