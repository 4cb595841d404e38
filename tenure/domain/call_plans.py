"""A plan: later calls of a task's tree that a person approves at once. See tenure/domain/planned_calls.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedCalls:
    """A plan. `same`: paths at which a call has the values `same_values`, JSON texts. Times: Unix time, whole seconds.
    `lasts_seconds`: of a plan that is not approved yet and has no `end_time`.

    The ledger sets `plan_id`, `same_values`, `approved_by` and `approve_time`.
    """

    plan_id: str = ""
    tool: str = ""
    count: int = 0
    when: str = ""
    same: tuple[str, ...] = ()
    sum_of: str = ""
    limit: str = ""
    end_time: float = 0.0
    same_values: tuple[str, ...] = ()
    approved_by: str = ""
    approve_time: float = 0.0
    lasts_seconds: float = 0.0

    def describe(self) -> str:
        """Returns the plan for people: `up to 5 calls of refund, args.customer "7", args.amount at most 200 in all`."""
        parts = [f"up to {self.count:,} calls of {self.tool}"]
        parts += [f"{path} {value}" for path, value in zip(self.same, self.same_values, strict=False)]
        parts += [self.when] if self.when else []
        parts += [f"{self.sum_of} at most {self.limit} in all"] if self.limit else []
        return ", ".join(parts)
