"""Runs pytest on a machine that stands still now and then, as a virtual machine does that is descheduled.

python -m tests.support.pauses [--every 10 20] [--seconds 2 3] [--seed N] -- PYTEST_ARGUMENTS

Freezes pytest and all its processes at random times: workers of the run, services, stores, tools. A test that
fails here, and not otherwise, depends on a time that is not its law. A process that a test has frozen stays frozen.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from devstack.child_process import freeze

PR_SET_CHILD_SUBREAPER: Final = 36
GONE: Final = (FileNotFoundError, ProcessLookupError)


def main(arguments: list[str]) -> int:
    """Returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for option, range_seconds in (("--every", (10.0, 20.0)), ("--seconds", (2.0, 3.0))):
        parser.add_argument(option, type=float, nargs=2, default=range_seconds, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("pytest", nargs="*")
    options = parser.parse_args(arguments)
    adopt_orphans()
    chance = random.Random(options.seed)
    sys.stderr.write(f"pauses with --seed {options.seed}\n")
    run = subprocess.Popen([sys.executable, "-m", "pytest", *options.pytest])
    signal.signal(signal.SIGINT, lambda *_: None)  # pytest gets it from the terminal too, and its end is awaited here
    signal.signal(signal.SIGTERM, lambda *_: run.terminate())
    while (exit_code := ended_within(run, chance.uniform(*options.every))) is None:
        seconds = chance.uniform(*options.seconds)
        frozen = list(frozen_descendants(os.getpid()))
        time.sleep(seconds)
        for pid in reversed(frozen):
            with suppress(*GONE):
                os.kill(pid, signal.SIGCONT)
        sys.stderr.write(f"\n{time.strftime('%H:%M:%S')} paused {len(frozen)} processes for {seconds:.1f} s\n")
    return exit_code


def adopt_orphans() -> None:
    """Makes this process the parent of each descendant whose parent ends, so that none leaves the tree."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def ended_within(run: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Returns the exit code, or None after so long. Reaps orphans meanwhile, as init does."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == run.pid:
                return run.wait()
            os.waitpid(ended.si_pid, 0)
        time.sleep(0.02)
    return None


def frozen_descendants(pid: int) -> Iterator[int]:
    """Freezes all descendants, a parent first: none can fork or freeze another meanwhile. Yields those that ran."""
    for child in children(pid):
        with suppress(*GONE):
            if state(child) not in "Tt":
                freeze(child)
                yield child
            yield from frozen_descendants(child)


def children(pid: int) -> list[int]:
    """Returns the children of all threads of a process."""
    found = list[int]()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(*GONE):
            found += map(int, thread.read_text().split())
    return found


def state(pid: int) -> str:
    """Returns the state of a process, one letter (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
