"""What a run of the suite started ends with it, also when pytest is killed: no process and no folder is left."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.store_folder import MEMORY, PREFIX

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a pid alone does not prove the end"),
]
REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 4 * PATIENCE_SECONDS  # pytest imports all services
ALONE, CONTROLLER, WORKER = "pytest without workers", "controller", "worker"


@pytest.fixture
def run(killed: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of its own whose one test waits: it has the shared stores, services and a simulator."""
    started, folder = tmp_path / "started", tmp_path / "tmp"
    folder.mkdir()
    workers = "0" if killed == ALONE else "1"
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "tests/conformance/killed_run.py"],
        cwd=REPOSITORY,
        env={**os.environ, "KILLED_RUN_STARTED": str(started), "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        ends_at = time.monotonic() + START_SECONDS
        while not started.exists():
            assert process.poll() is None, "the run ended"
            assert time.monotonic() < ends_at, "the test of the run did not start"
            time.sleep(0.05)
        yield process
        process.kill()


@pytest.mark.faults
@pytest.mark.parametrize("killed", [ALONE, CONTROLLER, WORKER])
def test_no_process_and_no_folder_outlives_a_killed_run(run: subprocess.Popen[bytes], killed: str) -> None:
    pids = [run.pid, *descendants(run.pid)]
    programs = " ".join(command_of(pid) for pid in pids)
    assert all(name in programs for name in ("bin/postgres", "bin/etcd", "fork_server"))
    folders = [Path(name) for name in re.findall(r"unix_socket_directories=(\S+)", programs)]
    folders += [folder for pid in pids for folder in MEMORY.glob(f"{PREFIX}{pid}-*")]
    assert len(folders) > 2
    descriptors = [os.pidfd_open(pid) for pid in pids]

    os.kill(run.pid if killed != WORKER else worker_of(run.pid), signal.SIGKILL)

    ends_at = time.monotonic() + PATIENCE_SECONDS
    for pid, descriptor in zip(pids, descriptors, strict=True):
        # A process's descriptor becomes readable when it ends.
        ended, _, _ = select.select([descriptor], [], [], max(0.0, ends_at - time.monotonic()))
        assert ended, f"{command_of(pid)} is left"
        os.close(descriptor)
    assert [folder for folder in folders if folder.exists()] == []


def worker_of(controller: int) -> int:
    """The child that pytest-xdist has started."""
    return next(pid for pid in children(controller) if "stdin.readline" in command_of(pid))


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return [*below, *(each for child in below for each in descendants(child))]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
