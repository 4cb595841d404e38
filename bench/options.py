"""How long to measure, and where the data goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

_Value = TypeVar("_Value")
Tell = Callable[[str], None]
ROUNDS: Final = 3
"""So often variants take turns; figures are the medians of the rounds."""


class Size(Enum):
    """FULL: the figures that may be published. QUICK: fewer samples. SMOKE: every line of the code runs once, in
    seconds; the figures mean nothing.
    """

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Options:
    """`folder` is empty at first; each measurement makes one of its own in it. `tell` hears what is going on."""

    folder: Path
    size: Size
    tell: Tell

    def choose(self, *, smoke: _Value, quick: _Value, full: _Value) -> _Value:
        """The value for the size of this run."""
        return {Size.SMOKE: smoke, Size.QUICK: quick, Size.FULL: full}[self.size]

    @property
    def rounds(self) -> int:
        """How often variants take turns."""
        return self.choose(smoke=1, quick=ROUNDS, full=ROUNDS)
