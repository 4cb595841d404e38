"""The command: seeds on one installation, until the time is over or something is broken that must not be.

python -m tests.fault.suite --minutes 10          seeds from a random one on
python -m tests.fault.suite --seeds 1..20         these
python -m tests.fault.suite --seed 7 --mode safety
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.fault.mutants.catalogue import MUTATIONS
from tests.fault.suite.evidence import Marks
from tests.fault.suite.installation import Installation, Size, attended, installation
from tests.fault.suite.report import Summary, keep, keep_broken, lines_of
from tests.fault.suite.schedule import Mode, plan
from tests.fault.suite.trial import Trial
from tests.fault.suite.weakening import weaken

KEPT: Final = Path(".tenure") / "faults"
FIRST_SEEDS: Final = 1_000_000


async def run(arguments: argparse.Namespace) -> Summary:
    """All seeds that were asked for. An installation that a seed could not bring back is replaced by a new one."""
    seeds, summary = iter(_seeds(arguments)), Summary()
    ends_at = time.monotonic() + arguments.minutes * 60 if arguments.minutes else float("inf")
    left = next(seeds, None)
    while left is not None and time.monotonic() < ends_at:
        folder = Path(tempfile.mkdtemp(prefix="tenure-faults-"))
        folder.chmod(0o755)  # the embedded Postgres may run as another account
        try:
            left = await _on_one_installation(folder, arguments, left, seeds, ends_at, summary)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return summary


async def _on_one_installation(
    folder: Path,
    arguments: argparse.Namespace,
    seed: int | None,
    seeds: Iterator[int],
    ends_at: float,
    summary: Summary,
) -> int | None:
    """Seeds until they are all done, the time is over, or one breaks the installation; the next one to run."""
    size = Size(replicas=arguments.replicas, workers=arguments.workers, etcd_members=arguments.etcd_members)
    async with installation(folder, size) as install, attended(install):
        if arguments.mutation:
            await weaken(install, arguments.mutation)
        while seed is not None and time.monotonic() < ends_at:
            works = await one_seed(install, seed, arguments.mode and Mode(arguments.mode), summary)
            seed = next(seeds, None)
            if not works:
                break
    return seed


async def one_seed(install: Installation, seed: int, mode: Mode | None, summary: Summary) -> bool:
    """Runs it and tells what came of it. False: the installation is not to be used any more."""
    marks = Marks.of(install)
    schedule = plan(seed, install.shape, mode)
    try:
        verdict = await Trial(install, schedule).run()
    except Exception as error:  # noqa: BLE001  whatever it is, the seed failed, and its evidence is kept
        summary.add_broken(seed)
        keep_broken(schedule, error, KEPT / f"seed-{seed}", install.logs, marks)
        _say(f"seed {seed} {schedule.mode} broke off: {error!r}; see {KEPT / f'seed-{seed}'}")
        return False
    summary.add(verdict)
    if verdict.violations:
        keep(verdict, KEPT / f"seed-{seed}", install.logs, marks)
    for line in lines_of(verdict):
        _say(line)
    return True


def _seeds(arguments: argparse.Namespace) -> Iterable[int]:
    if arguments.seed is not None:
        return [arguments.seed]
    if arguments.seeds:
        spans = (each.partition("..") for each in arguments.seeds.split(","))
        return [seed for first, _, last in spans for seed in range(int(first), int(last or first) + 1)]
    return itertools.count(random.randrange(FIRST_SEEDS))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """0: nothing was broken that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.suite", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with new seeds for so long")
    parser.add_argument("--seeds", default="", help="FIRST..LAST, or several with commas")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default=None, help="else by the seed")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--etcd-members", type=int, default=1, choices=[1, 3])
    parser.add_argument("--mutation", default="", choices=["", *sorted(MUTATIONS)], help="take this guard away first")
    arguments = parser.parse_args()
    if not (arguments.minutes or arguments.seeds or arguments.seed is not None):
        parser.error("say for how long, or which seeds")
    logging.basicConfig(level=logging.ERROR)
    summary = asyncio.run(run(arguments))
    for line in summary.lines():
        _say(line)
    return 1 if summary.failed else 0
