"""The trust window: until when a worker may start something new without hearing from a coordinator.

It saves wasted work; it is not what makes takeover safe (the fences are). All moments are monotonic seconds of one
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_MARGIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """`sent_at`: when the last answered renewal was SENT. Counting from its answer would trust the network's delay."""

    sent_at: float
    ttl_seconds: float
    margin_seconds: float = DEFAULT_MARGIN_SECONDS

    @property
    def ends_at(self) -> float:
        return self.sent_at + self.ttl_seconds - self.margin_seconds

    def is_open(self, now: float) -> bool:
        """Whether something new may be started."""
        return now < self.ends_at

    def renewed(self, sent_at: float) -> TrustWindow:
        """The window after the answer to a renewal that was sent at `sent_at`; never shorter than before."""
        return TrustWindow(max(self.sent_at, sent_at), self.ttl_seconds, self.margin_seconds)
