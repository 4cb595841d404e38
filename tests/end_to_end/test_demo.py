"""`tenure demo` as a stranger runs it: in a process of its own, judged by its last line and its exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import longest

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

COMMAND = [sys.executable, "-c", "from tenure.cli.main import main; main()", "demo", "--json"]
WHOLE_SECONDS = 500
STOP_SECONDS = 120
IN_TIME = {"resumed_after_freeze", "resumed_after_kill"}
"""What is judged by seconds, which are more on a busy machine; all else holds on any."""


def processes_of(data_dir: Path) -> set[int]:
    """The pids that the stack's processes logged, and those whose command line names the folder."""
    logged = {
        int(pid) for path in (data_dir / "logs").glob("*.log") for pid in re.findall(r"\bpid=(\d+)", path.read_text())
    }
    listed = subprocess.run(["ps", "-axo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    named = {int(line.split()[0]) for line in listed.splitlines() if str(data_dir) in line}
    return {pid for pid in logged | named if is_alive(pid)}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.faults
def test_a_task_survives_a_frozen_and_a_killed_worker(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    run = subprocess.run(
        [*COMMAND, "--data", str(data_dir)], capture_output=True, text=True, timeout=WHOLE_SECONDS, check=False
    )
    decoded = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == (1 if decoded["broken"] else 0), run.stderr
    assert set(decoded["broken"]) <= IN_TIME, run.stderr
    assert decoded["trouble"] == ""
    assert decoded["task_state"] == "SUCCEEDED"
    assert decoded["steps"] == 9
    assert decoded["takeovers"] == 3
    assert decoded["effects"] == decoded["effects_expected"] == 9
    assert decoded["stale_refused_ledger"] >= 1
    assert decoded["stale_refused_tools"] >= 1
    assert decoded["model_calls_repeated"] == 0
    longest_seconds = longest(10)
    assert 0 < decoded["resume_seconds_kill"] <= longest_seconds
    assert 0 < decoded["resume_seconds_freeze"] <= longest_seconds
    assert processes_of(data_dir) == set()


@pytest.mark.nightly
def test_ctrl_c_ends_every_process_of_the_demo(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with subprocess.Popen(
        [*COMMAND, "--data", str(data_dir)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stderr is not None
            assert any("FROZEN" in line for line in demo.stderr)  # a stopped process must not be left behind either
            assert processes_of(data_dir)
            demo.send_signal(signal.SIGINT)
            demo.send_signal(signal.SIGINT)  # the impatient press it twice
            assert demo.stderr is not None
            demo.stderr.read()
            assert demo.wait(STOP_SECONDS) == 130
        finally:
            demo.kill()
    assert processes_of(data_dir) == set()


@pytest.mark.nightly
def test_a_used_folder_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    run = subprocess.run(
        [*COMMAND, "--data", str(tmp_path)], capture_output=True, text=True, timeout=STOP_SECONDS, check=False
    )
    assert run.returncode == 2
    assert "is not empty" in run.stderr
