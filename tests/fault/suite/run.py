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
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.fault.mutants.catalogue import MUTATIONS
from tests.fault.suite.evidence import Marks
from tests.fault.suite.installation import Installation, Size, attended, installation
from tests.fault.suite.report import Summary, keep, told
from tests.fault.suite.schedule import Mode, plan
from tests.fault.suite.trial import Trial
from tests.fault.suite.weakening import weaken

KEPT: Final = Path(".tenure") / "faults"
FIRST_SEEDS: Final = 1_000_000


async def run(arguments: argparse.Namespace) -> Summary:
    """All seeds that were asked for."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-faults-"))
    size = Size(replicas=arguments.replicas, workers=arguments.workers, etcd_members=arguments.etcd_members)
    ends_at = time.monotonic() + arguments.minutes * 60 if arguments.minutes else None
    summary = Summary()
    try:
        folder.chmod(0o755)  # the embedded Postgres may run as somebody else
        async with installation(folder, size) as install, attended(install):
            if arguments.mutation:
                await weaken(install, arguments.mutation)
            for seed in _seeds(arguments):
                if ends_at is not None and time.monotonic() > ends_at:
                    break
                await one_seed(install, seed, arguments.mode and Mode(arguments.mode), summary)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return summary


async def one_seed(install: Installation, seed: int, mode: Mode | None, summary: Summary) -> None:
    """Runs it and tells what came of it."""
    marks = Marks.of(install)
    verdict = await Trial(install, plan(seed, install.shape, mode)).run()
    summary.add(verdict)
    if verdict.violations:
        keep(verdict, KEPT / f"seed-{seed}", install.logs, marks)
    for line in told(verdict):
        _say(line)


def _seeds(arguments: argparse.Namespace) -> Iterable[int]:
    if arguments.seed is not None:
        return [arguments.seed]
    if arguments.seeds:
        first, _, last = arguments.seeds.partition("..")
        return range(int(first), int(last or first) + 1)
    return itertools.count(random.randrange(FIRST_SEEDS))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """0: nothing was broken that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.suite", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with new seeds for so long")
    parser.add_argument("--seeds", default="", help="FIRST..LAST")
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
    return 1 if summary.violations else 0
