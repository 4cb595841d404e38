"""`python -m bench [NAMES…] [--quick | --smoke] [--json FILE]`: measures, and says what it measured."""

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

from bench.figures import Section
from bench.machine import look
from bench.options import Options, Size
from bench.report import as_json, render

NAMES: Final = ("latency", "commits", "reserves", "steps", "growth", "retention", "programs")
Measure = Callable[[Options], Awaitable[list[Section]]]


def main() -> int:
    """The exit code: 0 when everything could be measured, whatever came out."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=arguments.data))
    folder.chmod(0o711)  # a Postgres that root may not run gets in under another account
    try:
        machine, began = look(folder), time.monotonic()
        sections = asyncio.run(_measure(_load(arguments.names or NAMES), Options(folder, _size(arguments), _tell)))
    except Exception:
        _tell(f"this could not be measured; data and logs are left in {folder}")
        raise
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(render(machine, sections, seconds))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(machine, sections, seconds), indent=2) + "\n")
    return 0


def _load(names: Sequence[str]) -> list[Measure]:
    """The measurements, with all they need. gRPC reads its environment when it is loaded: else it would tell of every
    process that is started while a channel is open.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    return [import_module(f"bench.{name}").measure for name in names]


async def _measure(measurements: Sequence[Measure], options: Options) -> list[Section]:
    """One after another: two at once would measure each other."""
    sections = []
    for measure in measurements:
        sections += await measure(options)
    return sections


def _size(arguments: argparse.Namespace) -> Size:
    if arguments.smoke:
        return Size.SMOKE
    return Size.QUICK if arguments.quick else Size.FULL


def _tell(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="about a minute and a half, with fewer samples")
    sizes.add_argument("--smoke", action="store_true", help="only whether everything runs; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="on which disk to measure (default: TMPDIR)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
