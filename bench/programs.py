"""Measures the time to the first line of an agent's program, against the same interpreter in a bare bubblewrap."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from bench.figures import Section
from bench.options import Options
from bench.program_starts import BARE_BUBBLEWRAP, COLD, EXECUTE, WARM, Starts, program_starts
from bench.samples import percentile
from services.tools.sandbox import SandboxUnavailable

PAUSE_SECONDS: Final = 0.3
IN_A_ROW: Final = 10
HOW: Final = (
    "From the request to the first line of a program that prints one. All ways take turns in a rotating order, "
    "so that other load of the machine affects each of them. A pause follows, as an agent thinks between two "
    "programs; the next sandboxes start in it. Execute runs on the real tool service with its defaults, in a "
    "workspace, and includes its writes to Postgres before the program starts."
)
HOW_BUSY: Final = (
    f"{IN_A_ROW} programs in a row without a pause: each is requested as soon as the one before is cleaned up, "
    "so there is hardly time to start the next sandbox ahead. The three ways take turns."
)


async def measure(options: Options) -> list[Section]:
    """Returns the times with pauses and without. On a machine without a sandbox the section has no figures."""
    options.tell("programs: starting Postgres, the tool service and two sandboxes")
    try:
        async with program_starts(options.folder / "programs") as starts:
            options.tell("programs: taking turns")
            paused = await _with_pauses(starts, options.choose(smoke=1, quick=30, full=200))
            options.tell("programs: in a row")
            busy = await _busy(starts, options.choose(smoke=1, quick=3, full=12))
    except SandboxUnavailable as unavailable:
        return [Section("To a program's first line", f"Not measured: {unavailable}")]
    return [paused, busy]


async def _with_pauses(starts: Starts, rounds: int) -> Section:
    names = list(starts.ways)
    samples: defaultdict[str, list[float]] = defaultdict(list)
    warm_runs_before = starts.warm.warm_runs
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(await starts.ways[name]())
        await asyncio.sleep(PAUSE_SECONDS)
    section = Section("To a program's first line", HOW)
    for name in names:
        section.add_latencies(name, samples[name])
    for name in (COLD, WARM, EXECUTE):
        _add_ratios(section, name, samples[name], samples[BARE_BUBBLEWRAP], is_compared=name == EXECUTE)
    section.add("found a warm sandbox", 100 * (starts.warm.warm_runs - warm_runs_before) / rounds, "%")
    return section


async def _busy(starts: Starts, rounds: int) -> Section:
    samples: defaultdict[str, list[float]] = defaultdict(list)
    warm_runs_before = starts.warm.warm_runs
    for _ in range(rounds):
        for name in (BARE_BUBBLEWRAP, COLD, WARM):
            samples[name] += [await starts.ways[name]() for _ in range(IN_A_ROW)]
    section = Section("To a program's first line, without a pause between programs", HOW_BUSY)
    for name, seconds in samples.items():
        section.add_latencies(name, seconds)
    for name in (COLD, WARM):
        _add_ratios(section, name, samples[name], samples[BARE_BUBBLEWRAP])
    warm_runs = starts.warm.warm_runs - warm_runs_before
    section.add("found a warm sandbox", 100 * warm_runs / (rounds * IN_A_ROW), "%")
    return section


def _add_ratios(
    section: Section, name: str, seconds: list[float], bare: list[float], *, is_compared: bool = False
) -> None:
    """Adds the ratios of the percentiles p50 and p99. The baseline has only the p50: a p99 needs many samples."""
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        ratio = percentile(seconds, share) / percentile(bare, share)
        what = f"{name}, {label}, against bare bwrap"
        section.add_rounds(what, [ratio], "times", is_compared=is_compared and label == "p50")
