"""Samples of the engines, their medians, and the ratios to Tenure of the same round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from bench.peers.peers import Setting
from bench.report import Spread, percentile, spread

ALONE: Final = 1
AT_ONCE: Final = 32
TENURE: Final = "tenure"
"""Tenure with a fenced tool effect a step, and with its faults."""
TENURE_STEP: Final = "tenure-step"
"""Tenure with a recorded step, the same as the peers do. The ratios are to this scene."""
TITLES: Final = {TENURE_STEP: "Tenure, recorded step", TENURE: "Tenure, fenced tool effect"}
"""The scenes of Tenure, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Making:
    """The creates, grants and openings of the tasks of a sample. `cpu_seconds`: of all processes."""

    tasks: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps of one round. `latencies`: seconds of steps. `cpu`: seconds by process. `written_bytes`: of the store.

    `making`: the part of it in which Tenure creates, grants and opens the tasks.
    """

    at_once: int
    steps: int
    seconds: float
    latencies: Sequence[float]
    cpu: Mapping[str, float]
    written_bytes: int
    making: Making | None = None

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    @property
    def cpu_us(self) -> float:
        """Processor time of all processes, in µs a step."""
        return sum(self.cpu.values()) * 1e6 / self.steps

    @property
    def step_bytes(self) -> float:
        """Bytes a step."""
        return self.written_bytes / self.steps

    @property
    def p50(self) -> float:
        """The median step in seconds."""
        return percentile(self.latencies, 0.5)


@dataclass(slots=True)
class Result:
    """All about one engine. `repeated`: surplus effects of each zombie run. `takeovers`: seconds from SIGKILL to the
    effect elsewhere. `error`: why it failed; empty if it did not.
    """

    name: str
    title: str
    version: str
    store: str
    takeover: str
    settings: Sequence[Setting]
    samples: list[Sample] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    error: str = ""

    def of(self, at_once: int) -> list[Sample]:
        """Returns the samples with so many tasks at once, one a round."""
        return [sample for sample in self.samples if sample.at_once == at_once]

    def spread(self, at_once: int, value: Callable[[Sample], float]) -> Spread:
        """Returns median and range of a value over the rounds."""
        return spread([value(sample) for sample in self.of(at_once)])

    def latency(self, at_once: int, share: float) -> float:
        """Returns a percentile of the steps of all rounds, in seconds."""
        return percentile([seconds for sample in self.of(at_once) for seconds in sample.latencies], share)

    def cpu_by_process(self, at_once: int) -> dict[str, float]:
        """Returns the median of each process, in µs a step."""
        samples = self.of(at_once)
        names = dict.fromkeys(name for sample in samples for name in sample.cpu)
        return {name: median(sample.cpu.get(name, 0.0) * 1e6 / sample.steps for sample in samples) for name in names}


@dataclass(frozen=True, slots=True)
class Ratios:
    """An engine ÷ Tenure's recorded step, each the median over the rounds: steps/s, and the p50 of a step."""

    rate: float
    p50: float


def ratios(result: Result, tenure: Result, at_once: int) -> Ratios:
    """Returns the ratios, each computed within a round, because the rounds differ in the machine's other load."""
    pairs = list(zip(result.of(at_once), tenure.of(at_once), strict=True))
    return Ratios(
        rate=median(sample.rate / base.rate for sample, base in pairs),
        p50=median(sample.p50 / base.p50 for sample, base in pairs),
    )


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the results for programs. The latencies of single steps are left out."""
    tenure = next((result for result in results if result.name == TENURE_STEP), None)
    return [_engine(result, tenure) for result in results]


def _engine(result: Result, tenure: Result | None) -> dict[str, Any]:
    return {
        "name": result.name,
        "title": result.title,
        "version": result.version,
        "store": result.store,
        "takeover": result.takeover,
        "settings": [{"what": one.what, "value": one.value, "source": one.source} for one in result.settings],
        "error": result.error,
        "loads": [_load(result, tenure, at_once) for at_once in (ALONE, AT_ONCE) if result.of(at_once)],
        "effects_repeated_by_a_zombie": result.repeated,
        "kill_to_effect_elsewhere_seconds": result.takeovers,
    }


def _load(result: Result, tenure: Result | None, at_once: int) -> dict[str, Any]:
    load: dict[str, Any] = {
        "at_once": at_once,
        "steps": sum(sample.steps for sample in result.of(at_once)),
        "steps_per_second": result.spread(at_once, lambda sample: sample.rate)._asdict(),
        "step_p50_ms": result.latency(at_once, 0.5) * 1000,
        "step_p99_ms": result.latency(at_once, 0.99) * 1000,
        "cpu_us_per_step": result.spread(at_once, lambda sample: sample.cpu_us)._asdict(),
        "cpu_us_per_step_by_process": result.cpu_by_process(at_once),
        "bytes_per_step": result.spread(at_once, lambda sample: sample.step_bytes)._asdict(),
    }
    if tenure is not None and not result.error and not tenure.error:
        against = ratios(result, tenure, at_once)
        load["ratios_to_tenure"] = {"steps_per_second": against.rate, "step_p50": against.p50}
    return load
