"""A sandbox for a test, and the check that nothing of it is left afterwards."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.tools.sandbox import Detection, Sandbox, SandboxSettings, detect
from services.tools.sandbox.cgroups import Cgroups
from services.tools.sandbox.procfs import instance_name

SLOTS = 8
WARM = 2
WARM_LIMITS = ("warm cgroups", "warm rlimits")


@pytest.fixture(scope="session")
def sandbox_settings() -> SandboxSettings:
    # Uids of this session's own, so that suites running at the same time do not see each other's processes.
    return SandboxSettings(slots=SLOTS, first_uid=100_000 + (os.getpid() % 10_000) * SLOTS)


@pytest.fixture(scope="session")
def sandbox_detection(sandbox_settings: SandboxSettings) -> Detection:
    detection = detect(sandbox_settings)
    if detection.missing:
        pytest.skip("no sandbox on this machine: " + "; ".join(detection.missing))
    return detection


# Warm sandboxes have tests of their own; that each law holds in them, too, is a sweep.
@pytest.fixture(params=["cold", pytest.param("warm", marks=pytest.mark.faults)])
async def sandbox(
    request: pytest.FixtureRequest, sandbox_settings: SandboxSettings, sandbox_detection: Detection
) -> AsyncIterator[Sandbox]:
    """With everything this machine offers; once with sandboxes that wait for their programs."""
    async with _opened(sandbox_settings, sandbox_detection, warm=request.param == "warm") as opened:
        yield opened


@asynccontextmanager
async def _opened(settings: SandboxSettings, detection: Detection, *, warm: bool) -> AsyncIterator[Sandbox]:
    async with Sandbox(dataclasses.replace(settings, warm=WARM if warm else 0), detection) as opened:
        if warm and (trouble := await opened._warm.start()):
            pytest.skip(f"no sandbox can be started ahead here: {trouble}")
        yield opened


@pytest.fixture(params=["cgroups", "rlimits", *(pytest.param(name, marks=pytest.mark.faults) for name in WARM_LIMITS)])
async def any_sandbox(
    request: pytest.FixtureRequest, sandbox_settings: SandboxSettings, sandbox_detection: Detection
) -> AsyncIterator[Sandbox]:
    """Once with cgroups and once as on a machine where none may be made: the same laws hold in both."""
    if "rlimits" in request.param:
        gated = not sandbox_detection.per_slot_uids
        sandbox_detection = dataclasses.replace(sandbox_detection, cgroups=Cgroups(()), gate_processes=gated)
    elif not {"memory", "pids"} <= sandbox_detection.cgroups.limits:
        pytest.skip("no cgroups that limit memory and processes may be made here")
    async with _opened(sandbox_settings, sandbox_detection, warm="warm" in request.param) as opened:
        yield opened


@pytest.fixture
def nothing_left_behind(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection
) -> Iterator[Callable[[], None]]:
    """No process, no cgroup, no descriptor, and the kernel's settings as before."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_bytes()
    descriptors = _descriptors()

    def check() -> None:
        uids = range(sandbox_settings.first_uid, sandbox_settings.first_uid + SLOTS)
        assert not _processes(uids)
        assert not _cgroups(sandbox_detection)
        opened = _descriptors().items() - descriptors.items()
        assert len(_descriptors()) <= len(descriptors), f"left open: {sorted(opened)}"
        assert Path("/proc/sys/kernel/core_pattern").read_bytes() == pattern

    yield check
    check()


def _descriptors() -> dict[str, str]:
    values = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            values[entry.name] = str(entry.readlink())
        except FileNotFoundError:
            continue  # the listing's own
    return values


def _processes(uids: range) -> list[str]:
    """Processes of the slots' uids, and children of this one that are bubblewrap."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        is_dead = status["State"].startswith("Z") and int(status["PPid"]) != os.getpid()  # another's to reap
        is_child = int(status["PPid"]) == os.getpid() and status["Name"] == "bwrap"
        if not is_dead and (is_child or int(status["Uid"].split()[0]) in uids):
            results.append(f"{entry.name} {status['Name']} {status['State']}")
    return results


def _cgroups(detection: Detection) -> list[str]:
    return [
        str(entry)
        for hierarchy in detection.cgroups.hierarchies
        for entry in hierarchy.directory.glob(f"{instance_name()}-*")
    ]
