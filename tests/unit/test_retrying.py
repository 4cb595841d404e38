"""Laws of trying again, and of duties, which try for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.observability import metrics
from tenure.runtime.process import Duties, heed_cancellation
from tenure.runtime.retrying import retrying
from tenure.runtime.task_group import TaskGroup
from tests.support.patience import PATIENCE_SECONDS

QUICK = RetryPolicy(max_attempts=3, initial_seconds=0.001, cap_seconds=0.001)


class Flaky:
    """Fails as told, then returns how often it was run."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.runs = 0

    async def __call__(self) -> int:
        self.runs += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.runs


async def test_retryable_error_is_retried() -> None:
    assert await retrying(Flaky(Unavailable("1"), Unavailable("2")), QUICK) == 3


async def test_the_last_error_is_raised_when_no_attempt_is_left() -> None:
    flaky = Flaky(*(Unavailable(str(number)) for number in range(1, 5)))
    with pytest.raises(Unavailable, match="3"):
        await retrying(flaky, QUICK)
    assert flaky.runs == 3


async def test_fenced_write_is_not_retried() -> None:
    flaky = Flaky(StaleEpoch(presented=1, current=2))
    with pytest.raises(StaleEpoch):
        await retrying(flaky, QUICK)
    assert flaky.runs == 1


async def test_delay_is_at_least_the_requested_one() -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    await retrying(Flaky(Unavailable("busy", retry_after_seconds=0.1)), QUICK, random_fraction=lambda: 0.0)
    assert clock() - began >= 0.1


async def test_cancelling_ends_the_tries() -> None:
    task = asyncio.create_task(retrying(Flaky(Unavailable("", retry_after_seconds=60)), QUICK))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_failed_duty_is_counted_logged_and_restarted(caplog: pytest.LogCaptureFixture) -> None:
    recovered = asyncio.Event()
    flaky = Flaky(ValueError("first"), Unavailable("second"))

    async def duty() -> None:
        await flaky()
        recovered.set()
        await asyncio.Event().wait()

    before = metrics.read("tenure_duty_failures_total", duty="test sweep")
    async with Duties(QUICK) as duties, asyncio.timeout(PATIENCE_SECONDS):
        duties.start("test sweep", duty)
        await recovered.wait()
    assert metrics.read("tenure_duty_failures_total", duty="test sweep") == before + 2
    assert "first" in caplog.text  # a fault: with its stack
    assert [record.error.message for record in caplog.records if hasattr(record, "error")] == ["second"]


async def test_unavailable_peer_is_not_a_failure_of_the_duty(caplog: pytest.LogCaptureFixture) -> None:
    failed_twice = asyncio.Event()
    failures = [[Unavailable("Postgres is away")], [Unavailable("and"), Unavailable("still")]]

    async def fail(error: Exception) -> None:
        raise error

    async def duty() -> None:
        if not failures:
            failed_twice.set()
            await asyncio.Event().wait()
        async with TaskGroup() as group:
            for error in failures.pop(0):
                group.create_task(fail(error))

    async with Duties(QUICK) as duties, asyncio.timeout(PATIENCE_SECONDS):
        duties.start("sending", duty)
        await failed_twice.wait()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


async def test_duties_of_a_group_end_together() -> None:
    ended = []

    async def duty() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async with Duties() as duties:
        task = duties.start("endless", duty)
        await asyncio.sleep(0)
    assert task.cancelled()
    assert ended == ["cleaned up"]


async def test_a_duty_that_fails_during_its_cancel_is_not_restarted() -> None:
    async def break_on_cancellation() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("broke at that moment") from None

    async def duty() -> None:
        async with TaskGroup() as group:  # which raises the failure, and not the cancellation
            group.create_task(break_on_cancellation())

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with Duties(QUICK) as duties:
            task = duties.start("breaking", duty)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert task.cancelled()


async def test_a_duty_whose_group_failed_once_goes_on() -> None:
    failed_twice = asyncio.Event()
    failures = 0

    async def fail() -> None:
        nonlocal failures
        await asyncio.sleep(0)
        failures += 1
        if failures == 2:
            failed_twice.set()
        raise ValueError("a stream broke")

    async def duty() -> None:
        while True:
            try:
                async with TaskGroup() as group:
                    group.create_task(fail())
            except ExceptionGroup:
                heed_cancellation()

    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        duties.start("breaking", duty)
        await failed_twice.wait()


async def test_swallowed_cancellation_is_repeated() -> None:
    """As wait_for does before Python 3.12 when what it waits for comes in the moment of the cancellation."""
    swallowed = asyncio.Event()
    begun = asyncio.Event()

    async def deaf_once() -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        swallowed.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_SECONDS), Duties(QUICK) as duties:
        ending = duties.start("deaf", deaf_once)
        await begun.wait()
    assert swallowed.is_set()
    assert ending.cancelled()
