"""The settings that limit what clients of the MCP server may spend and answer."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tenure.domain.errors import InvalidRequest

DEFAULT_MAX_COST: Final = Decimal("1.00")
"""US dollars. A model submits tasks by itself, so each has a cap, also where the installation has none."""


@dataclass(frozen=True, slots=True)
class McpServerSettings:
    """`max_cost`: of one submit, in US dollars; None: only the installation's own cap, as for models without a price.

    `approvals`: clients may approve calls, not only answer questions.

    `agent`, `model`, `queue`, `labels`: of each submit. `agent`: an agent in Python, by its name.
    """

    max_cost: Decimal | None = DEFAULT_MAX_COST
    approvals: bool = False
    agent: str = ""
    model: str = ""
    queue: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def cost_of(self, wanted: float | None) -> Decimal | None:
        """Returns the cap of a submit; None: no other than the installation's. Raises InvalidRequest for more."""
        if wanted is None:
            return self.max_cost
        cost = Decimal(str(wanted))
        if not cost.is_finite() or cost <= 0 or (self.max_cost is not None and cost > self.max_cost):
            most = "" if self.max_cost is None else f" and at most {self.max_cost} dollars, the cap of this MCP server"
            rule = f"must be above 0{most}"
            raise InvalidRequest(violations=[("max_cost", rule)])
        return cost
