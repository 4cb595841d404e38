"""Rounds in which the engines take turns: one task after another, and 32 tasks at once.

Each engine starts for its turn on an empty store and ends after it, so that nothing of the others runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.options import Options
from bench.peers.engine import Engine, Running
from bench.peers.program import EngineFailedError
from bench.peers.programs.agent import STEPS
from bench.peers.results import ALONE, AT_ONCE, Result, Sample

WARM_UP_TASKS: Final = {ALONE: 3, AT_ONCE: 2 * AT_ONCE}


async def run_rounds(engines: Sequence[Engine], results: Mapping[str, Result], options: Options) -> None:
    """Adds the samples to the results. An engine that fails gets an error and has no further turn."""
    rounds = options.choose(smoke=1, quick=3, full=5)
    for number in range(rounds):
        turn = number % len(engines)
        for engine in [*engines[turn:], *engines[:turn]]:
            result = results[engine.name]
            if result.error:
                continue
            options.tell(f"round {number + 1} of {rounds}: {engine.title}")
            try:
                for at_once in (ALONE, AT_ONCE):
                    folder = options.folder / f"{engine.name}_{number}_{at_once}"
                    folder.mkdir()
                    result.samples.append(await _measure(engine, folder, at_once, options))
            except EngineFailedError as error:
                result.error = str(error)
                options.tell(f"{engine.title} failed: {error}")


async def _measure(engine: Engine, folder: Path, at_once: int, options: Options) -> Sample:
    running: Running
    async with engine.running(folder, at_once) as running:
        warm_up = await running.run(
            options.choose(smoke=at_once, quick=WARM_UP_TASKS[at_once], full=WARM_UP_TASKS[at_once])
        )
        seconds = options.choose(smoke=0.2, quick=1.5, full=5.0)
        return await running.run(task_count(warm_up.rate, seconds, at_once))


def task_count(rate: float, seconds: float, at_once: int) -> int:
    """Returns how many tasks take about so many seconds at `rate` steps/s, in whole sets of those at once."""
    sets = round(rate * seconds / STEPS / at_once)
    return max(1, sets) * at_once
