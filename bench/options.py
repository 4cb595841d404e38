"""The options of a run: how long to measure, and where the data goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

_Value = TypeVar("_Value")
Tell = Callable[[str], None]
ROUNDS: Final = 5
"""The number of rounds in which variants take turns; a figure is the median of the rounds."""


class Size(Enum):
    """FULL: figures that may be published. QUICK: fewer samples. SMOKE: the code runs once, in seconds, and the figures
    mean nothing.
    """

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Options:
    """`folder` is empty at first; each measurement creates its own below it. `tell` prints a progress text.

    `minutes`: how long `hour` runs, if not as long as its size says.
    """

    folder: Path
    size: Size
    tell: Tell
    minutes: float | None = None

    def choose(self, *, smoke: _Value, quick: _Value, full: _Value) -> _Value:
        """Returns the value for the size of this run."""
        return {Size.SMOKE: smoke, Size.QUICK: quick, Size.FULL: full}[self.size]

    @property
    def rounds(self) -> int:
        """The number of rounds in which variants take turns."""
        return self.choose(smoke=1, quick=ROUNDS, full=ROUNDS)
