"""Laws of failpoints: off they do nothing, a typo is an error, and each action does what it says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.domain import errors
from tenure.runtime.failpoints import (
    arm,
    declare,
    declare_switch,
    disarm,
    failpoint,
    failpoint_enabled,
)
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import log_context
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.settings import ConfigurationError
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PLACE = "worker.after_model"


@pytest.fixture(autouse=True)
def _off() -> Iterator[Any]:
    yield
    disarm()


async def test_off_nothing_happens() -> None:
    await failpoint(PLACE)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("worker.aftermodel=kill9", "worker.aftermodel is not a failpoint"),
        ("worker.ignore_trust", "worker.ignore_trust is not a switch"),
        (f"{PLACE}=explode", "'explode' is not an action"),
        (f"{PLACE}=", "'' is not an action"),
        (f"{PLACE}=kill9(now)", "kill9 does not accept the argument 'now'"),
        (f"{PLACE}=sleep(soon)", "sleep does not accept the argument 'soon'"),
        (f"{PLACE}=error(OOPS)", "error does not accept the argument 'OOPS'"),
        (f"{PLACE}=touch", "touch does not accept the argument ''"),
        (f"{PLACE}=0#kill9", "'0#kill9' is not an action"),
    ],
)
def test_a_typo_is_an_error(setting: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match="TENURE_FAILPOINTS") as caught:
        arm(setting)
    assert problem in str(caught.value)


def test_typos_are_reported_together_and_arm_nothing() -> None:
    with pytest.raises(ConfigurationError) as caught:
        arm("worker.ignore_trust_window;a.b=kill9;c.d=kill9")
    assert len(caught.value.problems) == 2
    assert not failpoint_enabled("worker.ignore_trust_window")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("UNAVAILABLE", errors.Unavailable),
        ("STALE_EPOCH", errors.StaleEpoch),
        ("DEADLINE_EXCEEDED", errors.Unavailable),
        ("RESOURCE_EXHAUSTED", errors.LimitReached),
        ("INTERNAL", PeerFailed),
    ],
)
async def test_error_action_raises_the_error_of_the_code(name: str, kind: Any) -> None:
    arm(f"{PLACE}=error({name})")
    with pytest.raises(kind):
        await failpoint(PLACE)
    await failpoint("worker.after_open")


async def test_only_the_nth_hit_counts() -> None:
    arm(f"{PLACE}=2#error(UNAVAILABLE)")
    await failpoint(PLACE)
    with pytest.raises(errors.Unavailable):
        await failpoint(PLACE)
    await failpoint(PLACE)


async def test_a_probability_is_kept_roughly() -> None:
    arm(f"{PLACE}=0.3*error(UNAVAILABLE)")
    raised = 0
    for _ in range(2000):
        try:
            await failpoint(PLACE)
        except errors.Unavailable:
            raised += 1
    assert 450 < raised < 750


async def test_files_coordinate_without_sleeping(tmp_path: Path) -> None:
    reached, go_on = tmp_path / "reached", tmp_path / "go-on"
    arm(f"{PLACE}=touch({reached})->wait({go_on})")
    async with asyncio.timeout(PATIENCE_SECONDS):
        passing = asyncio.create_task(failpoint(PLACE))
        while not reached.exists():
            await asyncio.sleep(0.01)
        assert not passing.done()
        go_on.touch()
        await passing


async def test_sleep_takes_milliseconds() -> None:
    arm(f"{PLACE}=sleep(50)")
    clock = asyncio.get_running_loop().time
    began = clock()
    await failpoint(PLACE)
    assert clock() - began >= 0.05


async def test_hits_are_counted_so_that_a_suite_can_prove_it_was_there() -> None:
    before = metrics.read("tenure_failpoint_hits_total", failpoint=PLACE)
    arm(f"{PLACE}=sleep(0)")
    await failpoint(PLACE)
    assert metrics.read("tenure_failpoint_hits_total", failpoint=PLACE) == before + 1


def test_a_switch_is_on_only_when_named() -> None:
    assert not failpoint_enabled("worker.ignore_trust_window")
    arm("worker.ignore_trust_window")
    assert failpoint_enabled("worker.ignore_trust_window")
    arm("")
    assert not failpoint_enabled("worker.ignore_trust_window")


PROGRAM = f"""
import asyncio
import json
from tenure.runtime.failpoints import arm, failpoint
async def main(action):
    arm("{PLACE}=" + action)
    await failpoint("{PLACE}")
    print("went on", flush=True)
import sys
asyncio.run(main(sys.argv[1]))
"""


def break_a_process(action: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, action], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_kill9_leaves_no_time_for_anything() -> None:
    with break_a_process("kill9") as process:
        assert process.wait(30) == -signal.SIGKILL
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_freeze_lasts_until_sigcont() -> None:
    with break_a_process("freeze") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=PATIENCE_SECONDS)[0] == "went on\n"


def test_names_are_declared_once() -> None:
    with pytest.raises(AssertionError, match="twice"):
        declare(PLACE, "again")
    with pytest.raises(AssertionError, match="twice"):
        declare_switch("worker.ignore_trust_window", "again")


async def test_gate_holds_the_process_until_its_answer(tmp_path: Path) -> None:
    """It says where it is and with which task. A gate without a keeper is open."""
    questions: asyncio.Queue[bytes] = asyncio.Queue()
    answer = asyncio.Event()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await questions.put(await reader.readline())
        await answer.wait()
        writer.close()

    path = tmp_path / "gate"
    arm(f"worker.after_open=gate({path})")
    async with await asyncio.start_unix_server(keep, path) as server:
        with log_context(task="7"):
            hit = asyncio.create_task(failpoint("worker.after_open"))
        assert json.loads(await questions.get()) == {"failpoint": "worker.after_open", "task": "7", "step": 0}
        assert not hit.done()
        answer.set()
        await hit
        server.close()
    path.unlink(missing_ok=True)
    await failpoint("worker.after_open")
