"""What stays in the ledger of the lease of a lost claim: the last renewals, and when the loss was noticed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tenure.domain.fencing import describe_epoch

KEPT_RENEWALS: Final = 5
"""The newest renewals that a lease end has: their distances show whether the worker was slow before it was silent."""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """The end of the lease of a lost claim, by the clock of the worker's coordinator.

    `renewal_count`: how many renewals etcd answered since the worker attached there. `renewals`: the newest of them.
    `unanswered_at`: a later renewal that etcd did not answer. `lost_at`: when the coordinator noticed the loss.
    """

    worker: str
    epoch: int
    renewal_count: int
    renewals: tuple[datetime, ...]
    unanswered_at: datetime | None
    lost_at: datetime | None

    def describe(self) -> str:
        """Returns the sentence for people."""
        holder = f"{self.worker} (epoch {describe_epoch(self.epoch)})"
        if not self.renewals:
            text = f"{holder} did not renew its lease after it attached to its coordinator"
        else:
            times = ", ".join(_clock(moment) for moment in self.renewals)
            number = "once" if self.renewal_count == 1 else f"{self.renewal_count:,} times"
            text = f"{holder} renewed its lease {number}, last at {times} UTC"
        if self.unanswered_at is not None:
            text += f"; etcd did not answer the renewal of {_clock(self.unanswered_at)}"
        if self.lost_at is None:
            return text
        after = f", {(self.lost_at - self.renewals[-1]).total_seconds():.1f} s later" if self.renewals else ""
        return f"{text}; lost at {_clock(self.lost_at)}{after}"


def _clock(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%H:%M:%S.%f")[:-5]
