"""Workers are forked from a process that has run their program, and share nothing but its imports."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.client.replays import worker_settings
from tenure.runtime.forks import ForkedProgram
from tenure.testing import Tenure
from tenure.testing.forks import WorkerForks, seen_before_the_fork
from tenure.v1 import task_pb2

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers are forked where the kernel has pidfds")
PATIENCE_SECONDS = 60.0
COUNTER = """
from pathlib import Path

from tenure.agents import Work, Worker, function

NAME = Path(__file__).with_name("name.txt").read_text()
runs = []


@function
async def count(work: Work, given: None) -> str:
    runs.append(work)
    return f"{NAME} {len(runs)}"


Worker([count]).run()
"""
CHECK = """
import os, socket, sys, threading
from tenure.testing.worker_program import can_be_forked
sock = socket.socket()
held = {}
print(can_be_forked(sock), flush=True)
os._exit(0)
"""
HOLDER = """
import sys
from pathlib import Path
from tenure.server_packages import server_packages
with server_packages("a test", extra="dev"):
    import devstack
from tenure.testing.forks import WorkerForks
program = Path(sys.argv[1])
with program.with_name("log").open("wb") as log:
    worker = WorkerForks().launch([sys.executable, str(program)], environment={}, cwd=program.parent, log=log)
print(worker.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "name.txt").write_text("old")
    (tmp_path / "counter.py").write_text(COUNTER)
    return tmp_path / "counter.py"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.faults
@pytest.mark.server
def test_workers_share_imports_and_no_state(tenure: Tenure, program: Path) -> None:
    """A change of a file that the program has read is seen by the next worker, and harms no other one."""

    def run() -> tuple[Any, int]:
        worker = tenure.worker(program=program)
        result = tenure.submit_function("count").result().value
        parent = parent_of(worker._process.pid)
        worker.kill()
        return result, parent

    (first, parent), (second, second_parent) = run(), run()
    assert (first, second) == ("old 1", "old 1")
    assert parent == second_parent != os.getpid()
    bystander = tenure.worker(program=program)
    assert parent_of(bystander._process.pid) == parent
    bystander.freeze()
    (program.parent / "name.txt").write_text("new")
    third, third_parent = run()
    assert third == "new 1"
    assert third_parent not in {parent, os.getpid()}
    assert bystander.is_running


def test_a_replay_shares_the_imports_of_its_program() -> None:
    """Its own settings are read behind the fork. A variable of the user may be read before."""
    own = {"PATH": "/bin", "SHOP": "open", "TENURE_WORKER_QUEUES": "default", "TENURE_WORKER_GATEWAY_ADDRESS": "a:1"}
    spec = task_pb2.TaskSpec(queue="replay-1", control=task_pb2.ControlWork(function="close_order"))
    replay = {**own, **worker_settings(Path("/tmp/record"), spec, "sim-scripted")}
    assert seen_before_the_fork("shop.py", replay) == seen_before_the_fork("shop.py", own)
    assert seen_before_the_fork("shop.py", {**replay, "SHOP": "closed"}) != seen_before_the_fork("shop.py", own)


@pytest.mark.parametrize(
    ("held", "expected"),
    [("None", True), ("open(os.devnull)", False), ("threading.Thread(target=sys.stdin.read).start()", False)],
)
def test_a_process_with_a_thread_or_an_open_file_is_not_forked(held: str, expected: bool) -> None:
    command = [sys.executable, "-c", CHECK.replace("{}", held)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{expected}\n"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("before", "code"),
    [("file = open(__file__)", -signal.SIGKILL), ("raise SystemExit('no shop')", 1)],
)
def test_a_program_that_cannot_be_forked_runs_itself(program: Path, before: str, code: int) -> None:
    program.write_text(before + COUNTER)
    forks, log = WorkerForks(), program.with_name("log")
    with log.open("wb") as file:
        worker = forks.launch([sys.executable, str(program)], environment={}, cwd=program.parent, log=file)
    assert parent_of(worker.pid) == os.getpid()
    if code < 0:
        worker.kill()
    assert worker.wait() == code
    assert ("no shop" in log.read_text()) == (code == 1)


@pytest.mark.faults
def test_forked_workers_end_with_the_process_of_the_tests(program: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        ends = [os.pidfd_open(worker), os.pidfd_open(parent_of(worker))]
        holder.kill()
    for end in ends:
        with os.fdopen(end) as ended:
            assert select.select([ended], [], [], PATIENCE_SECONDS)[0]


def test_a_signal_after_an_unreported_end_does_nothing() -> None:
    """The server waits for its children, so a pid may be nobody's before its exit code has arrived."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    exit_code, unreported = os.pipe()
    ForkedProgram(ended.pid, exit_code).terminate()
    os.close(unreported)
    os.close(exit_code)
