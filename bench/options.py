"""How long to measure, and where the data goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_Value = TypeVar("_Value")
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`folder` is empty at first; each measurement makes one of its own in it. `tell` hears what is going on."""

    folder: Path
    quick: bool
    tell: Tell

    def choose(self, *, quick: _Value, full: _Value) -> _Value:
        """One of two sizes of a measurement."""
        return quick if self.quick else full
