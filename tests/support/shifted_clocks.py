"""Clocks of processes that a test sets, while they run (see clock/sitecustomize.py).

clocks = Clocks(folder)
StackOptions(environment=clocks.environment())      # every kind of service has a clock of its own
clocks.shift("worker", wall_seconds=3600)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("gateway", "coordinator", "checkpoint", "tools", "worker")
_SHIM = Path(__file__).with_name("clock")


@dataclass(frozen=True)
class Clocks:
    """One file for each kind of service."""

    folder: Path
    _monotonic: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.right_wall_clocks()

    def environment(self) -> dict[str, dict[str, str]]:
        """For StackOptions."""
        return {kind: {"PYTHONPATH": str(_SHIM), "TEST_CLOCK_FILE": str(self.folder / kind)} for kind in KINDS}

    def shift(self, kind: str, *, wall_seconds: float = 0.0, jump_seconds: float = 0.0) -> None:
        """Sets how far the wall clock is ahead from now on, and lets the monotonic clock jump forward for good."""
        assert jump_seconds >= 0
        self._monotonic[kind] = self._monotonic.get(kind, 0.0) + jump_seconds
        path = self.folder / kind
        with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("dd", wall_seconds, self._monotonic[kind]))

    def right_wall_clocks(self) -> None:
        """All of them."""
        for kind in KINDS:
            self.shift(kind)
