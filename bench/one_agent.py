"""Measures a step of one agent alone, without a model and a tool, against the wall floor of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.cpu import CpuMeter
from bench.data_path import DataPath
from bench.figures import Section
from bench.held_tasks import HeldTask
from bench.null_agent import NullAgent
from bench.null_steps import STEPS, null_agents
from bench.options import Options
from bench.samples import percentile
from bench.wall_floor import ROUND_TRIPS, wall_floor

ROUNDS: Final = 7
HOW: Final = (
    f"One agent, one task of {STEPS} steps after another; a step is that of the 32 agents. The wall floor: "
    f"{ROUND_TRIPS} round trips on a gRPC stream to a process that returns each message, and after each a transaction "
    f"with one update, on the same Postgres. Tasks and as many floors take turns in {ROUNDS} rounds."
)


@dataclass(slots=True)
class _Rounds:
    """Seconds of all steps and floors, the ratio of their p50 in each round, and µs a step by process."""

    steps: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, steps: list[float], floors: list[float], used: Mapping[str, float]) -> None:
        self.steps += steps
        self.floors += floors
        self.ratios.append(percentile(steps, 0.5) / percentile(floors, 0.5))
        for name, seconds in used.items():
            self.cpu[name].append(seconds * 1e6 / len(steps))


async def measure(options: Options) -> list[Section]:
    """Returns latencies and processor time of a step, and its ratio to the floor."""
    options.tell("one agent: starting Postgres, checkpoint and tools")
    path = DataPath(options.folder / "one-agent", "checkpoint", "tools")
    count = options.choose(smoke=1, quick=15, full=60)
    rounds = _Rounds()
    async with path, null_agents(path) as agents, wall_floor(path) as floor:
        await _steps(agents.agent, await agents.maker.held(options.choose(smoke=1, quick=20, full=20)))
        for number in range(1, options.choose(smoke=1, quick=ROUNDS, full=ROUNDS) + 1):
            options.tell(f"one agent: round {number}")
            tasks = await agents.maker.held(count)
            steps, floors, used = [], [], dict.fromkeys([*path.pids(), "driver"], 0.0)
            for task in tasks:
                meter = CpuMeter(path.pids(), own="driver")
                meter.start()
                steps += await _steps(agents.agent, [task])
                for name, value in meter.used_seconds().items():
                    used[name] += value
                floors += [await floor.step() for _ in range(STEPS)]
            rounds.add(steps, floors, used)
    return [_section(rounds)]


async def _steps(agent: NullAgent, tasks: list[HeldTask]) -> list[float]:
    """Runs one task after another. Returns the seconds of each step."""
    seconds = []
    for task in tasks:
        await agent.begin(task)
        seconds += [await agent.step(task, last=number == STEPS) for number in range(1, STEPS + 1)]
    return seconds


def _section(rounds: _Rounds) -> Section:
    section = Section("One agent alone, no model, no tool", HOW)
    section.add_latencies("a step", rounds.steps)
    section.add_latencies("the wall floor of a step", rounds.floors)
    section.add_rounds("a step against the wall floor, p50", rounds.ratios, "times", is_compared=True)
    for name, values in rounds.cpu.items():
        section.add_rounds(f"CPU of {name}", values, "µs a step")
    return section
