"""`python -m bench [NAMES…] [--quick] [--json FILE]`: measures, and says what it measured."""

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
from pathlib import Path
from typing import Final

from bench import commits, growth, latency, steps
from bench.figures import Section
from bench.machine import look
from bench.options import Options
from bench.report import as_json, render

MEASUREMENTS: Final[dict[str, Callable[[Options], Awaitable[list[Section]]]]] = {
    "latency": latency.measure,
    "commits": commits.measure,
    "steps": steps.measure,
    "growth": growth.measure,
}


def main() -> int:
    """The exit code: 0 when everything could be measured, whatever came out."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # we fork to exec only; gRPC would warn of it each time
    arguments = _arguments()
    names = arguments.names or list(MEASUREMENTS)
    folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=arguments.data))
    folder.chmod(0o711)  # a Postgres that root may not run gets in under another account
    try:
        machine, began = look(folder), time.monotonic()
        sections = asyncio.run(_measure(names, Options(folder, arguments.quick, _tell)))
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


async def _measure(names: Sequence[str], options: Options) -> list[Section]:
    """One after another: two at once would measure each other."""
    sections = []
    for name in names:
        sections += await MEASUREMENTS[name](options)
    return sections


def _tell(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="about a minute and a half, with fewer samples")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="on which disk to measure (default: TMPDIR)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MEASUREMENTS):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
