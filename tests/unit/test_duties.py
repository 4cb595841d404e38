"""Laws of duties that end or stand still although they have no end: they go on, or end the process."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest

from tenure.domain.retry import RetryPolicy
from tenure.runtime import process as duties_module
from tenure.runtime.observability import metrics
from tenure.runtime.process import (
    TICKS_OF_SILENCE,
    Duties,
    DutyEnded,
    DutyStalled,
    NoLimit,
    Run,
    note_progress,
    rest,
    resting,
)
from tests.support.patience import PATIENCE_SECONDS

QUICK = RetryPolicy(max_attempts=3, initial_seconds=0.001, cap_seconds=0.001)
SILENCE_SECONDS = 0.1


class Scripted:
    """A duty whose runs do what they are given, one after another; the last one waits for ever."""

    def __init__(self, *runs: Any) -> None:
        self._runs = list(runs)
        self.began = 0
        self.goes_on = asyncio.Event()

    async def __call__(self) -> None:
        self.began += 1
        if self._runs:
            await self._runs.pop(0)()
            return
        self.goes_on.set()
        await asyncio.Event().wait()


async def return_at_once() -> None:
    return


async def cancel_itself() -> Any:
    """As gRPC does: a reader of a cancelled call gets a CancelledError, although it was not cancelled itself."""
    raise asyncio.CancelledError


async def never_return() -> None:
    await asyncio.Event().wait()


async def goes_on_after(*runs: Any, **options: Any) -> tuple[Scripted, list[str]]:
    duty = Scripted(*runs)
    stuck: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK, on_stuck=stuck.append) as duties:
        duties.start("scripted", duty, **options)
        await duty.goes_on.wait()
    return duty, stuck


async def test_an_unrequested_cancellation_does_not_end_a_duty(caplog: pytest.LogCaptureFixture) -> None:
    before = metrics.read("tenure_duty_failures_total", duty="scripted") or 0
    duty, _ = await goes_on_after(cancel_itself)
    assert duty.began == 2
    assert metrics.read("tenure_duty_failures_total", duty="scripted") == before + 1
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.levelno == logging.ERROR
    assert record.exc_info
    assert isinstance(record.exc_info[1], DutyEnded)
    assert "cancel_itself" in caplog.text  # with the place where it was raised


async def test_a_cancellation_in_a_duty_does_not_reach_its_next_run() -> None:
    left = []

    async def cancel_the_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def look() -> None:
        task = asyncio.current_task()
        assert task is not None
        left.append(task.cancelling())

    await goes_on_after(cancel_the_task, look)
    assert left == [0]


async def test_a_duty_that_returns_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    duty, _ = await goes_on_after(return_at_once)
    assert duty.began == 2
    assert "the duty returned" in caplog.text


async def test_a_duty_that_may_end_ends_by_its_return(caplog: pytest.LogCaptureFixture) -> None:
    duty = Scripted(return_at_once)
    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        await duties.start("scripted", duty, may_end=True)
    assert duty.began == 1
    assert not caplog.records


async def test_a_silent_duty_restarts_and_logs_where_it_waited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = metrics.read("tenure_duty_stalls_total", duty="scripted") or 0
    duty, stuck = await goes_on_after(never_return, silence_seconds=SILENCE_SECONDS)
    assert duty.began >= 2
    assert stuck == []
    assert metrics.read("tenure_duty_stalls_total", duty="scripted") >= before + 1
    assert "no progress for 0.1 s" in caplog.text
    assert "never_return" in caplog.text


async def test_a_duty_that_notes_progress_is_left_alone() -> None:
    async def beat() -> None:
        for _ in range(8 * TICKS_OF_SILENCE):
            await asyncio.sleep(SILENCE_SECONDS / TICKS_OF_SILENCE / 2)
            note_progress()

    async def work() -> None:
        await asyncio.create_task(beat())

    run = Run("beating", work)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await run.ended(SILENCE_SECONDS)
    assert run.failure(may_end=True) is None


async def test_stopped_process_is_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was frozen finds its timers due at once, and its duty has had no time to go on."""
    loop = asyncio.get_running_loop()
    ran = asyncio.Event()

    async def wait() -> None:
        await ran.wait()

    run = Run("frozen", wait)
    watching = asyncio.create_task(run.ended(3600.0))
    await asyncio.sleep(0)
    passed = loop.time() + 10 * 3600.0
    monkeypatch.setattr(loop, "time", lambda: passed)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not watching.done()
    ran.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await watching


async def test_a_silent_duty_that_does_not_end_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duties_module, "STUCK_SECONDS", 0.1)
    release, exits = asyncio.Event(), []

    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    def end(reason: str) -> None:
        exits.append(reason)
        release.set()

    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK, on_stuck=end) as duties:
        duties.start("deaf", deaf, silence_seconds=SILENCE_SECONDS)
        await release.wait()
    (reason,) = exits
    assert "the duty deaf is stuck" in reason
    assert "deaf" in reason


async def test_the_process_really_ends() -> None:
    program = (
        "import asyncio\nfrom tenure.runtime import process as d\nd.STUCK_SECONDS = 0.1\n"
        "async def deaf():\n    while True:\n        try: await asyncio.Event().wait()\n"
        "        except asyncio.CancelledError: pass\n"
        "async def main():\n    async with d.Duties() as duties:\n"
        "        duties.start('deaf', deaf, silence_seconds=0.1)\n        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, words = await process.communicate()
    assert process.returncode == duties_module.STUCK_EXIT_CODE
    assert b"the duty deaf is stuck" in words


async def test_a_second_cancellation_still_waits_for_the_run() -> None:
    ended, began = [], asyncio.Event()

    async def slow_to_end() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                try:
                    await asyncio.sleep(0.005)
                except asyncio.CancelledError:
                    continue
            ended.append(True)

    async with Duties(QUICK) as duties:
        task = duties.start("slow", slow_to_end)
        await began.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.005)
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        assert ended == [True]
        assert task.cancelled()


async def test_stall_names_the_awaited_coroutines() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    run = Run("nested", outer)
    with pytest.raises(DutyStalled, match=r"outer .*> .*inner .*> .*wait"):
        await run.ended(SILENCE_SECONDS)
    await run.cancel()


async def test_announced_pause_is_not_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long it rests; what it does afterwards has the whole limit again."""
    rested = asyncio.Event()

    async def pause_then_never_return() -> None:
        await rest(3 * SILENCE_SECONDS)
        rested.set()
        await never_return()

    duty, stuck = await goes_on_after(pause_then_never_return, silence_seconds=SILENCE_SECONDS)
    assert duty.began >= 2
    assert stuck == []
    assert rested.is_set()
    assert "pause_then_never_return" in caplog.text
    assert "never_return" in caplog.text


async def test_a_wait_that_this_process_ends_may_take_any_time() -> None:
    woken = asyncio.Event()

    async def work() -> None:
        with resting():
            await woken.wait()

    run = Run("resting", work)
    watching = asyncio.create_task(run.ended(SILENCE_SECONDS))
    await asyncio.sleep(4 * SILENCE_SECONDS)
    assert not watching.done()
    woken.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await watching


async def test_a_duty_with_a_reason_for_no_limit_is_left_alone() -> None:
    duty = Scripted()
    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        task = duties.start("scripted", duty, silence_seconds=NoLimit("a test waits for its end"))
        await duty.goes_on.wait()
        await asyncio.sleep(2 * SILENCE_SECONDS)
        assert not task.done()
    assert duty.began == 1
