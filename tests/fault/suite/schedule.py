"""From a seed to everything that will happen: pure, so that a seed is a command that replays it.

SAFETY: faults follow each other to the end of the traffic and may overlap; only what must never happen is judged.
LIVENESS: fewer faults, which are over at `heal_at`; then every acknowledged task must come to rest in time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from checker.history import BoundRecord
from tenure.runtime.failpoints import FAILPOINTS
from tenure.runtime.request_context import DEFAULT_TENANT
from tests.fault.suite.scenarios import FAMILY, WEIGHTS

TRAFFIC_SECONDS: Final = 12.0
NTH: Final = (1, 1, 1, 2, 3)
GUESTS: Final = 0.2
GUEST: Final = "guest"
PLANNED: Final = sorted(name for name in FAILPOINTS if not name.startswith("models."))
"""The failpoints of the suite's services, which have no model runner."""
EARLY: Final = 0.4  # of the time of others: what is armed has to start again first, and then to meet its place


class Mode(StrEnum):
    SAFETY = "safety"
    LIVENESS = "liveness"


class Manner(StrEnum):
    """How a person settles calls in doubt. CAREFUL looks once the runner is proven gone, HASTY at once, others not."""

    CAREFUL = "careful"
    HASTY = "hasty"
    VOUCHES = "vouches that the runner is gone"
    BELIEVES = "believes that it happened"
    GIVES_UP = "gives up"
    SAYS_NOTHING = "says nothing"


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is to break: the names of the processes, of the links between them (`who>whom`), and of the stores."""

    services: tuple[str, ...]
    links: tuple[str, ...]
    stores: tuple[str, ...] = ("postgres", "etcd")

    def of(self, *kinds: str) -> list[str]:
        return [name for name in self.services if kind_of(name) in kinds]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task and what its client does. Times in seconds: `at` from the start, the others from `at`.

    `manner`: of the operator who settles its calls in doubt; `contested`: another one contradicts at the same time.
    `guest`: of the tenant GUEST.
    `cancels_call`: what `cancel_after` is counted from is the task's first call.
    """

    at: float
    scenario: str
    tells_model: bool = False
    repeats: int = 0
    loses_answer: bool = False
    cancel_after: float | None = None
    cancels_call: bool = False
    watchers: int = 0
    slow: bool = False
    reads: bool = False
    timeout_seconds: float | None = None
    manner: Manner = Manner.SAYS_NOTHING
    contested: bool = False
    max_tokens: int | None = None
    guest: bool = False


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: `kind` names its injector, `target` what it meets, `seconds` how long it lasts."""

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    detail: str = ""

    def __str__(self) -> str:
        how_long = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:5.1f} s  {self.kind} {self.target}{how_long}{f'  {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, slots=True)
class PlannedStop:
    """A stop of an operator. `seconds`: from its answer to its end. `selectors`: it covers everything without one."""

    at: float
    seconds: float
    selectors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Schedule:
    """`bounds`: of rules of the tenant GUEST, from before the first task to after the last one."""

    seed: int
    mode: Mode
    tasks: tuple[PlannedTask, ...]
    faults: tuple[PlannedFault, ...]
    stop: PlannedStop | None = None
    bounds: tuple[BoundRecord, ...] = ()

    @property
    def heal_at(self) -> float:
        """When everything is mended at the latest."""
        return max([TRAFFIC_SECONDS, *(fault.at + fault.seconds for fault in self.faults)])


def kind_of(service: str) -> str:
    """`checkpoint-2` is a checkpoint."""
    name, _, number = service.rpartition("-")
    return name if number.isdecimal() else service


def plan(seed: int, shape: Shape, mode: Mode | None = None) -> Schedule:
    """Even seeds are LIVENESS, odd ones SAFETY, unless the mode is given."""
    rng = random.Random(seed)
    chosen = mode or (Mode.SAFETY if seed % 2 else Mode.LIVENESS)
    tasks = [_task(rng) for _ in range(rng.randint(20, 32))]
    count = rng.randint(6, 12) if chosen is Mode.SAFETY else rng.randint(3, 6)
    faults = [_fault(rng, shape) for _ in range(count)]
    tasks += [_family(rng) for _ in range(rng.randint(1, 2))]
    tasks = [replace(task, guest=rng.random() < GUESTS) for task in tasks]
    return Schedule(
        seed,
        chosen,
        tuple(sorted(tasks, key=lambda task: task.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
        _stop(random.Random(f"stop {seed}")),
        _bounds(random.Random(f"bounds {seed}"), seed),
    )


STOPPED: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"tenant": DEFAULT_TENANT},
    {"tenant": GUEST},
    {"queue": "default"},
    {"tool": "append_*"},
    {"tool": "append_record", "tenant": DEFAULT_TENANT},
)


def _stop(rng: random.Random) -> PlannedStop | None:
    """Half of the seeds have one. It has an `rng` of its own, as the bounds have: tasks and faults stay as they are."""
    if rng.random() < 0.5:
        return None
    return PlannedStop(rng.uniform(1.0, TRAFFIC_SECONDS * 0.6), rng.uniform(0.5, 2.0), rng.choice(STOPPED))


def _bounds(rng: random.Random, seed: int) -> tuple[BoundRecord, ...]:
    """Of calls of one task, and of all guests together."""
    if rng.random() < 0.5:
        return ()
    calls, most = rng.randint(2, 5), rng.randint(3, 12)
    return (
        BoundRecord(name=f"few-{seed}", tenant=GUEST, tool="append_record", since=0.0, count=calls, per="task"),
        BoundRecord(
            name=f"short-{seed}", tenant=GUEST, tool="append_*", since=0.0, sum_of="args.delay_ms", limit=f"{most}00"
        ),
    )


MANNERS: Final = {
    Manner.CAREFUL: 5,
    Manner.HASTY: 4,
    Manner.VOUCHES: 2,
    Manner.BELIEVES: 1,
    Manner.GIVES_UP: 2,
    Manner.SAYS_NOTHING: 1,
}
"""How often each is chosen."""


def _task(rng: random.Random) -> PlannedTask:
    [scenario] = rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
    return PlannedTask(
        at=rng.uniform(0, TRAFFIC_SECONDS * 0.7),
        scenario=scenario,
        tells_model=rng.random() < 0.3,
        repeats=rng.choice([0, 0, 0, 1, 3]),
        loses_answer=rng.random() < 0.2,
        cancel_after=rng.uniform(0.0, 5.0) if rng.random() < 0.2 else None,
        watchers=rng.choice([0, 1, 1, 2]),
        slow=rng.random() < 0.2,
        reads=rng.random() < 0.5,
        timeout_seconds=rng.uniform(1.0, 8.0) if rng.random() < 0.05 else None,
        manner=rng.choices(list(MANNERS), weights=list(MANNERS.values()))[0],
        contested=rng.random() < 0.2,
    )


def _family(rng: random.Random) -> PlannedTask:
    """Four agents with one budget: sometimes it is too small for all of them."""
    return PlannedTask(
        at=rng.uniform(0, TRAFFIC_SECONDS * 0.5),
        scenario=FAMILY,
        repeats=rng.choice([0, 1]),
        cancel_after=rng.uniform(1.0, 5.0) if rng.random() < 0.3 else None,
        watchers=rng.choice([0, 1]),
        reads=rng.random() < 0.5,
        max_tokens=rng.choice([None, 40_000, 7_000]),
    )


def _fault(rng: random.Random, shape: Shape) -> PlannedFault:
    makers: dict[_Maker, int] = {
        _kill: 5,
        _terminate: 2,
        _freeze: 3,
        _zombie: 2,
        _late_calls: 2,
        _lost_runner: 4,
        _failpoint_kill: 6,
        _failpoint_other: 2,
        _cut: 4,
        _reset: 2,
        _stores: 3,
        _model: 2,
        _stale: 1,
        _generation: 1,
    }
    [make] = rng.choices(list(makers), weights=list(makers.values()))
    return make(rng, rng.uniform(0.5, TRAFFIC_SECONDS * 0.8), shape)


_Maker = Callable[[random.Random, float, Shape], PlannedFault]


def _service(rng: random.Random, shape: Shape) -> str:
    """Half of the time a worker: what workers do is what the others are there for."""
    return rng.choice(shape.of("worker") if rng.random() < 0.5 else list(shape.services))


def _kill(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    return PlannedFault(at, "kill", _service(rng, shape), rng.uniform(0.0, 2.0))


def _terminate(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    return PlannedFault(at, "terminate", _service(rng, shape), rng.uniform(0.0, 2.0))


def _freeze(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    return PlannedFault(at, "freeze", _service(rng, shape), rng.uniform(0.5, 8.0))


def _zombie(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    """The worker without guards of its own, taken for dead, wakes up and goes on: only the fences stop it."""
    return PlannedFault(at, "freeze", shape.of("worker")[-1], rng.uniform(6.0, 9.0))


def _late_calls(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    """The same, but it falls asleep between intents and calls, and its tasks are ended before it wakes up."""
    return PlannedFault(at * EARLY, "late_calls", shape.of("worker")[-1], 0.0, f"{rng.choice(NTH)}#freeze")


def _lost_runner(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    """Of calls that must not be repeated, whichever tool service that is by then. Frozen until they are given up."""
    if rng.random() < 0.5:
        return PlannedFault(at, "lose_runner", shape.of("tools")[0], rng.uniform(0.0, 2.0), "kill")
    return PlannedFault(at, "lose_runner", shape.of("tools")[0], rng.uniform(5.0, 8.0), "freeze")


def _failpoint_kill(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    name = rng.choice(PLANNED)
    detail = f"{name}={rng.choice(NTH)}#kill9"
    return PlannedFault(at * EARLY, "arm", _one_of(rng, shape, name), rng.uniform(3.0, 8.0), detail)


def _failpoint_other(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    name = rng.choice(PLANNED)
    action = rng.choice(["0.3*error(UNAVAILABLE)", "0.5*sleep(700)", f"{rng.choice(NTH)}#sleep(6000)"])
    return PlannedFault(at, "arm", _one_of(rng, shape, name), rng.uniform(2.0, 6.0), f"{name}={action}")


def _one_of(rng: random.Random, shape: Shape, failpoint: str) -> str:
    return rng.choice(shape.of(failpoint.partition(".")[0]))


def _cut(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    kind = rng.choice(["cut", "cut", "cut_back", "refuse"])
    return PlannedFault(at, kind, rng.choice(shape.links), rng.uniform(0.5, 8.0))


def _reset(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    return PlannedFault(at, "reset", rng.choice(shape.links))


def _stores(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    kind, longest = rng.choice([("kill", 1.5), ("freeze", 6.0)])
    return PlannedFault(at, kind, rng.choice(shape.stores), rng.uniform(0.2, longest))


MODEL_FAULTS: Final[Sequence[str]] = (
    '{"status": 429, "retry_after_seconds": 1, "count": 4}',
    '{"status": 500, "count": 3}',
    '{"status": 529, "count": 4}',
    '{"broken_stream": 2, "count": 3}',
    '{"overloaded": 1, "count": 3}',
    '{"latency_ms": 2500, "count": 4}',
)


def _model(rng: random.Random, at: float, _shape: Shape) -> PlannedFault:
    return PlannedFault(at, "model", "simulator", 0.0, rng.choice(MODEL_FAULTS))


def _stale(_rng: random.Random, at: float, _shape: Shape) -> PlannedFault:
    return PlannedFault(at, "stale_write", "checkpoint")


def _generation(rng: random.Random, at: float, shape: Shape) -> PlannedFault:
    if rng.random() < 0.5 and "etcd" in shape.stores:
        return PlannedFault(at, "replace_etcd", "etcd")
    return PlannedFault(at, "lose_generation", "etcd")
