"""The committed baseline of ratios, and what regressed against it. Ratios, unlike times, hold on other machines too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.report import Figure, Section
from bench.run import Machine

FILE: Final = Path(__file__).with_name("baseline.json")
TOLERANCE: Final = 0.15
ACCEPT: Final = "python -m bench --accept"


class BaselineError(Exception):
    """The file of the baseline is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A measured ratio. `is_less_better`: a growth is a regression; else a fall is."""

    section: str
    what: str
    value: float
    unit: str
    is_less_better: bool

    @property
    def key(self) -> str:
        return f"{self.section}: {self.what}"

    def regressed(self, expected: float) -> bool:
        """Returns whether this is worse than expected by more than the tolerance."""
        if self.is_less_better:
            return self.value > expected * (1 + TOLERANCE)
        return self.value < expected * (1 - TOLERANCE)


def ratios(sections: Sequence[Section]) -> list[Ratio]:
    """Returns the figures that are compared with the baseline."""
    return [_ratio(section, figure) for section in sections for figure in section.figures if figure.is_compared]


def _ratio(section: Section, figure: Figure) -> Ratio:
    return Ratio(section.title, figure.what, figure.value, figure.unit, figure.unit == "times")


def problems(measured: Sequence[Ratio], baseline: Mapping[str, float]) -> list[str]:
    """Returns a sentence for each regression, and for each ratio that only the baseline or only the run has."""
    sentences = [sentence for ratio in measured if (sentence := _problem(ratio, baseline.get(ratio.key)))]
    missing = sorted(baseline.keys() - {ratio.key for ratio in measured})
    did_not = "the baseline has this ratio, but the run did not measure it"
    return sentences + [f"{key}: {did_not}. {_how_to_accept()}" for key in missing]


def _problem(ratio: Ratio, expected: float | None) -> str | None:
    if expected is None:
        return f"{ratio.key}: the baseline does not have this ratio. {_how_to_accept()}"
    if not ratio.regressed(expected):
        return None
    limit = expected * (1 + TOLERANCE if ratio.is_less_better else 1 - TOLERANCE)
    side = "at most" if ratio.is_less_better else "at least"
    return (
        f"{ratio.what} regressed, in the section '{ratio.section}': expected {side} {limit:.2f} {ratio.unit} "
        f"({TOLERANCE:.0%} from the baseline's {expected:.2f}), measured {ratio.value:.2f}. {_how_to_accept()}"
    )


def _how_to_accept() -> str:
    return f"If the change is meant, accept a new baseline with: {ACCEPT}"


def read(path: Path = FILE) -> dict[str, float]:
    """Returns the ratios of the baseline by key. Raises BaselineError."""
    try:
        values = json.loads(path.read_text())["ratios"]
        return {key: float(value) for key, value in values.items()}
    except FileNotFoundError:
        raise BaselineError(f"there is no baseline at {path}: write one with: {ACCEPT}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BaselineError(f"{path} is not a baseline ({error!r}): restore it, or write one with: {ACCEPT}") from None


def write(measured: Sequence[Ratio], machine: Machine, path: Path = FILE) -> None:
    """Writes the measured ratios as the new baseline, with the date and the kind of machine."""
    content: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.line(),
        "ratios": {ratio.key: round(ratio.value, 3) for ratio in measured},
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
