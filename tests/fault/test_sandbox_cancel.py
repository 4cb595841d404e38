"""Runs that are cancelled, at whatever moment, and runs in numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.tools.sandbox import Detection, Sandbox, SandboxLimits, SandboxSettings, SandboxStatus
from tests.support.fix_sandbox import SLOTS

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

SHORT = SandboxLimits(wall_seconds=0.25)
LONG = SandboxLimits(wall_seconds=600)


async def test_a_cancelled_run_is_gone_at_once(any_sandbox: Sandbox, nothing_left_behind: Callable[[], None]) -> None:
    ready = asyncio.Event()
    code = "import os\nfor _ in range(2): os.fork()\nprint('ready')\nwhile True: pass"
    run = asyncio.create_task(any_sandbox.run_python(code, None, LONG, lambda *_: ready.set()))
    await ready.wait()
    began = time.monotonic()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert time.monotonic() - began < 60  # by itself it would end after ten minutes
    assert all(task.done() for task in any_sandbox._running)


@pytest.mark.faults
@pytest.mark.parametrize("milliseconds", [0, 1, 3, 6, 10, 15, 20, 25, 30, 40, 55])
async def test_a_run_can_be_cancelled_at_any_moment(
    any_sandbox: Sandbox, nothing_left_behind: Callable[[], None], milliseconds: int, tmp_path: Path
) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(milliseconds / 1000):
            await any_sandbox.run_python("import time; time.sleep(600)", tmp_path, LONG)
    assert time.monotonic() - began < 60
    assert all(task.done() for task in any_sandbox._running)


@pytest.mark.faults
async def test_a_run_cancelled_during_its_kill_is_killed(sandbox: Sandbox) -> None:
    ready = asyncio.Event()
    code = "print('ready')\nimport time; time.sleep(60)"
    run = asyncio.create_task(sandbox.run_python(code, None, SandboxLimits(), lambda *_: ready.set()))
    await ready.wait()
    while not run.done():
        run.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert all(task.done() for task in sandbox._running)


@pytest.mark.faults
async def test_closing_ends_what_runs(sandbox: Sandbox) -> None:
    ready = asyncio.Event()
    code = "print('ready')\nimport time; time.sleep(60)"
    run = asyncio.create_task(sandbox.run_python(code, None, SandboxLimits(), lambda *_: ready.set()))
    await ready.wait()
    await sandbox.close()
    assert (await run).status is SandboxStatus.CANCELLED


@pytest.mark.faults
async def test_two_hundred_runs_take_turns_without_harm(sandbox: Sandbox) -> None:
    """Each of them a time bomb: they hold still and then, all at once, use what they can get."""
    bomb = "import os, time\ntime.sleep(0.05)\nos.fork()\nwhile True: pass"
    neighbour = "import hashlib\nprint(hashlib.sha256(b'x' * 100_000).hexdigest()[:8])"
    most_at_once = 0

    async def run(code: str, limits: SandboxLimits) -> SandboxStatus:
        nonlocal most_at_once
        result = await sandbox.run_python(code, None, limits)
        most_at_once = max(most_at_once, len(sandbox._running))
        return result.status

    runs = [run(neighbour, LONG) if number % 20 == 0 else run(bomb, SHORT) for number in range(200)]
    statuses = await asyncio.gather(*runs)
    assert statuses[::20] == [SandboxStatus.OK] * 10
    assert statuses.count(SandboxStatus.TIMEOUT) == 190
    assert most_at_once <= SLOTS


@pytest.mark.faults
async def test_slots_of_two_services_may_have_the_same_names(
    sandbox: Sandbox, sandbox_settings: SandboxSettings, sandbox_detection: Detection, tmp_path: Path
) -> None:
    """Two services on one host whose operator gave them the same uids: what one does ends nothing of the other's."""
    wait = "import os, time\nprint('ready')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    ready = asyncio.Event()
    run = asyncio.create_task(sandbox.run_python(wait, tmp_path, LONG, lambda *_: ready.set()))
    await ready.wait()
    async with Sandbox(sandbox_settings, sandbox_detection) as other:
        assert (await other.run_python("import os\nos.kill(-1, 9)", None, LONG)).status is SandboxStatus.NONZERO
        spinning = asyncio.Event()
        code = "print('spins')\nwhile True: pass"
        cancelled = asyncio.create_task(other.run_python(code, None, LONG, lambda *_: spinning.set()))
        await spinning.wait()
        await other.close()
        assert (await cancelled).status is SandboxStatus.CANCELLED
    (tmp_path / "go").touch()
    assert (await run).status is SandboxStatus.OK
