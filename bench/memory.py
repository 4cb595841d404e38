"""Memory by process, read from /proc. Without /proc (macOS) there are no figures."""

from __future__ import annotations

from pathlib import Path

from bench.cpu import children


def memory_kib(pid: int) -> int:
    """Returns the proportional set size of a process and its children in KiB: a shared page counts once in all.

    0 for a process that has ended.
    """
    return sum(_proportional_kib(process) for process in (pid, *children(pid)))


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
