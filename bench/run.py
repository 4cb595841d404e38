"""A run: how long to measure, where the data goes, and on which machine. A figure means nothing without its machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from devstack.etcd import EtcdMissingError, etcd_version, find_etcd
from devstack.postgres_cluster import EmbeddedPostgresError, find_postgres_binaries

_Value = TypeVar("_Value")
Tell = Callable[[str], None]
ROUNDS: Final = 5
"""The number of rounds in which variants take turns; a figure is the median of the rounds."""


class Size(Enum):
    """FULL: figures that may be published. QUICK: fewer samples. SMOKE: the code runs once, in seconds, and the figures
    mean nothing.
    """

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Options:
    """`folder` is empty at first; each measurement creates its own below it. `tell` prints a progress text."""

    folder: Path
    size: Size
    tell: Tell

    def choose(self, *, smoke: _Value, quick: _Value, full: _Value) -> _Value:
        """Returns the value for the size of this run."""
        return {Size.SMOKE: smoke, Size.QUICK: quick, Size.FULL: full}[self.size]

    @property
    def rounds(self) -> int:
        """The number of rounds in which variants take turns."""
        return self.choose(smoke=1, quick=ROUNDS, full=ROUNDS)


_SYNCS = 50
_PAGE = b"\0" * 8192


@dataclass(frozen=True, slots=True)
class Machine:
    """`sync_ms`: how long the disk takes to make 8 KiB durable. `load`: of the whole machine, at the start."""

    cores: int
    system: str
    python: str
    postgres: str
    etcd: str
    sync_ms: float
    load: float

    def line(self) -> str:
        """Returns the description in one line."""
        return (
            f"{self.cores} cores, {self.system}, Python {self.python}, Postgres {self.postgres}, etcd {self.etcd}, "
            f"fsync of 8 KiB {self.sync_ms:.2f} ms, load {self.load:.1f} at the start"
        )


def look(folder: Path) -> Machine:
    """Returns the description of this machine, and of the disk that has `folder`."""
    return Machine(
        cores=_cores(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        postgres=_postgres_version(),
        etcd=_etcd_version(),
        sync_ms=_sync_ms(folder / "sync"),
        load=os.getloadavg()[0],
    )


def _cores() -> int:
    """Returns the cores that this process may use, or all where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _postgres_version() -> str:
    try:
        return find_postgres_binaries(None).version
    except EmbeddedPostgresError:
        return "missing"


def _etcd_version() -> str:
    try:
        return etcd_version(find_etcd(None))
    except EtcdMissingError:
        return "missing"


def _sync_ms(path: Path) -> float:
    """Returns the median time to sync a page that is written in place, as a write-ahead log is. A RAM disk has 0.00."""
    sync = getattr(os, "fdatasync", os.fsync)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        samples = []
        for _ in range(_SYNCS):
            began = time.perf_counter()
            os.pwrite(descriptor, _PAGE, 0)
            sync(descriptor)
            samples.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return median(samples)
