"""`python -m bench [NAME…] [--quick | --smoke] [--json FILE]`: runs the measurements and prints a report.

With --check: measures the ratios of the committed baseline, at the size of --quick, and says which of them regressed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from bench import baseline
from bench.report import Section, as_json, render
from bench.run import Options, Size, look

NAMES: Final = (
    "latency",
    "commits",
    "steps",
    "one_agent",
    "programs",
    "stops",
)
LONG_NAMES: Final = ("scale",)
"""Measurements of many minutes, which run only when they are named."""
COMPARED: Final = ("commits", "one_agent", "steps", "programs")
"""The measurements with ratios of the baseline."""
Measure = Callable[[Options], Awaitable[list[Section]]]


def main() -> int:
    """Returns the exit code: 0 if every measurement ran, whether or not the bounds hold.

    With --check: 1 if a ratio regressed, 2 if there is no baseline.
    """
    arguments = _arguments()
    try:
        expected = baseline.read() if arguments.check else {}
    except baseline.BaselineError as error:
        print(error, file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=arguments.data))
    folder.chmod(0o711)  # Postgres refuses to run as root: it enters under another account
    try:
        machine, began = look(folder), time.monotonic()
        options = Options(folder, _size(arguments), _print_progress)
        sections = asyncio.run(_measure(_load(_names(arguments)), options))
    except Exception:
        _print_progress(f"the measurement failed; its data and logs are kept in {folder}")
        raise
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(render(machine, sections, seconds))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(machine, sections, seconds), indent=2) + "\n")
    if arguments.accept:
        baseline.write(baseline.ratios(sections), machine)
    return check(sections, expected) if arguments.check else 0


def check(sections: Sequence[Section], expected: dict[str, float]) -> int:
    """Prints what regressed. Returns the exit code: 1 if anything did."""
    sentences = baseline.problems(baseline.ratios(sections), expected)
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    if not sentences:
        print(f"All {len(expected)} ratios of the baseline hold.")
    return 1 if sentences else 0


def _names(arguments: argparse.Namespace) -> Sequence[str]:
    if arguments.check or arguments.accept:
        return COMPARED
    return arguments.names or NAMES


def _load(names: Sequence[str]) -> list[Measure]:
    """Imports the measurements.

    gRPC reads its environment at import. With fork support it would log each process that is started while a channel
    is open.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    return [import_module(f"bench.{name}").measure for name in names]


async def _measure(measurements: Sequence[Measure], options: Options) -> list[Section]:
    """Runs one measurement after another: two at once would disturb each other."""
    sections = []
    for measure in measurements:
        sections += await measure(options)
    return sections


def _size(arguments: argparse.Namespace) -> Size:
    if arguments.smoke:
        return Size.SMOKE
    return Size.QUICK if arguments.quick or arguments.check or arguments.accept else Size.FULL


def _print_progress(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; and by name only: {', '.join(LONG_NAMES)}"
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="fewer samples")
    sizes.add_argument("--smoke", action="store_true", help="only check that everything runs; the figures mean nothing")
    sizes.add_argument("--check", action="store_true", help="say which ratio regressed against bench/baseline.json")
    sizes.add_argument("--accept", action="store_true", help="write bench/baseline.json from a new measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="the directory, and so the disk, to measure on (default: TMPDIR)"
    )
    arguments = parser.parse_args()
    if arguments.names and (arguments.check or arguments.accept):
        parser.error("--check and --accept measure all ratios of the baseline: give no names with them")
    known = (*NAMES, *LONG_NAMES)
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown measurement: {', '.join(sorted(unknown))}; the measurements are {', '.join(known)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
