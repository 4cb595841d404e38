"""Whether an effect may begin, as a test says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Begins:
    """`may`: in time, and at all."""

    may: bool = True

    def in_time(self) -> bool:
        return self.may

    def at_all(self) -> bool:
        return self.may
