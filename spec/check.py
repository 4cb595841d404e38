"""Checks the specification: searches every configuration of the matrix exhaustively within its bounds.

    python -m spec            the small matrix
    python -m spec --large    also the large matrix
    python -m spec --only m_record --trace     one configuration, with its trace

Needs spin and a C compiler. Exit status 1 when a verdict is not the expected one, or a search did not end.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spec.matrix import BREAKS, HOLDS, LARGE, SMALL, Configuration

HERE: Final = Path(__file__).parent
_MEMORY_MIB: Final = 8000
_COMPILE: Final = ("-DSAFETY", "-DBFS", "-DNOFAIR", "-DVECTORSZ=2048", f"-DMEMLIM={_MEMORY_MIB}")
_SEARCH_SECONDS: Final = 1500
_NOISE: Final = re.compile(r"^\s*(spin:|#processes|\d+ processes)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a search. `got`: HOLDS, BREAKS, or why the search reached neither."""

    configuration: Configuration
    got: str
    states: int
    seconds: float
    trace: str

    @property
    def is_expected(self) -> bool:
        return self.got == self.configuration.expected


def missing_tools() -> list[str]:
    """Returns the required programs that are not installed."""
    return [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]


def advice() -> str:
    """Returns one sentence on how to install the missing programs, or ""."""
    missing = missing_tools()
    if not missing:
        return ""
    which = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'}"
    return f"{which} not installed, so the models of spec/ cannot be searched; on Debian: apt-get install spin gcc"


def check(configuration: Configuration) -> Verdict:
    """Searches all states of one configuration."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tenure-spec-") as folder:
        return _check(configuration, Path(folder), began)


def _check(configuration: Configuration, folder: Path, began: float) -> Verdict:
    model = Path(shutil.copy(HERE / configuration.model, folder))  # spin writes its trace beside the model
    # The matrix overrides a flag by defining it again: the last definition counts.
    flags = [f"-D{name}={value}" for name, value in _last_values(configuration.flags).items()]
    _run(["spin", "-a", *flags, model.name], folder)
    _run(["gcc", _optimization(configuration), *_COMPILE, "-o", "pan", "pan.c"], folder)
    try:
        output = _run(["./pan", "-E", "-m100000"], folder, timeout=_SEARCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(configuration, f"unknown: not done in {_SEARCH_SECONDS} s", 0, _SEARCH_SECONDS, "")
    states = re.search(r"(\d+) states, stored", output)
    trace = _trace(model, flags, folder) if (folder / f"{model.name}.trail").exists() else ""
    count = int(states[1]) if states else 0
    return Verdict(configuration, _verdict(output), count, time.monotonic() - began, trace)


def _optimization(configuration: Configuration) -> str:
    """Returns the compiler option. For short searches, optimized compilation would take longer than the search."""
    if configuration.expected == BREAKS:
        return "-O0"
    return "-O1" if configuration in SMALL else "-O2"


def _last_values(flags: str) -> dict[str, str]:
    pairs = (flag.partition("=") for flag in flags.split())
    return {name: value or "1" for name, _, value in pairs}


def _verdict(output: str) -> str:
    cut_short = re.search(r"reached -DMEMLIM|max search depth too small|out of memory", output)
    if cut_short:
        return f"unknown: {cut_short[0]}"
    errors = re.search(r"errors: (\d+)", output)
    if errors is None:
        return f"unknown: {output.strip()[-200:]}"
    return HOLDS if errors[1] == "0" else BREAKS


def _trace(model: Path, flags: list[str], folder: Path) -> str:
    lines = _run(["spin", "-t", "-B", *flags, model.name], folder, check=False).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not _NOISE.match(line))


def _run(command: list[str], folder: Path, *, timeout: float = 120, check: bool = True) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=timeout, check=False)
    output = (done.stdout + done.stderr).decode(errors="replace")
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:2])} failed: {output[-2000:]}")
    return output


def main(arguments: list[str] | None = None) -> int:
    """Runs the configurations and prints a line for each."""
    parser = argparse.ArgumentParser(description="Check the specification.")
    parser.add_argument("--large", action="store_true", help="the large matrix too")
    parser.add_argument("--only", metavar="NAME", help="one configuration")
    parser.add_argument("--trace", action="store_true", help="print the shortest trace of what breaks")
    options = parser.parse_args(arguments)
    if missing := advice():
        print(missing, file=sys.stderr)
        return 2
    chosen: tuple[Configuration, ...] = (*SMALL, *LARGE) if options.large or options.only else SMALL
    chosen = tuple(each for each in chosen if options.only in {None, each.name})
    verdicts = []
    for configuration in chosen:
        verdict = check(configuration)
        verdicts.append(verdict)
        mark = "  " if verdict.is_expected else "!!"
        print(
            f"{mark} {configuration.name:28} {verdict.got:8} {verdict.states:>11,} states {verdict.seconds:6.1f} s",
            flush=True,
        )
        if options.trace and verdict.trace:
            print("\n".join(f"       {line}" for line in verdict.trace.splitlines()))
    surprises = [each for each in verdicts if not each.is_expected]
    print(
        f"{len(verdicts)} configurations, {sum(each.states for each in verdicts):,} states, {len(surprises)} surprises"
    )
    return 1 if surprises or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
