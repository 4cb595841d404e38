"""Reports of usage are sent until the ledger takes or refuses them, and slow ones hold up no other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from services.models.main import REPORTS_TRIED_SECONDS
from tenure.domain.budget import TokenUsage
from tenure.domain.errors import Unavailable, WrongState
from tenure.domain.in_doubt import ATTEMPT_OPEN, ATTEMPT_SETTLED, ReportedCall
from tenure.domain.retry import RetryPolicy
from tenure.domain.task import MAX_TIMEOUT_SECONDS
from tenure.runtime import usage_reports
from tenure.runtime.usage_reports import UsageReport, UsageReports
from tests.support.patience import PATIENCE_SECONDS


def report(step: int) -> UsageReport:
    return UsageReport(b"token", "task", ReportedCall(step, 1, TokenUsage(1, 1)), "req")


@asynccontextmanager
async def running(
    send: Callable[[UsageReport], Awaitable[None]], results: Counter[str], *, tried_seconds: float = 3600.0
) -> AsyncIterator[UsageReports]:
    reports = UsageReports(send, lambda result: results.update([result]), max_waiting=20, tried_seconds=tried_seconds)
    task = asyncio.create_task(reports.run())
    try:
        yield reports
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(results: Counter[str], count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while results.total() < count:
            await asyncio.sleep(0.01)


async def test_an_open_attempt_is_reported_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_reports, "AGAIN", RetryPolicy(initial_seconds=0.01, cap_seconds=0.1))
    results, tries = Counter[str](), Counter[int]()

    async def send(one: UsageReport) -> None:
        tries[one.call.step] += 1
        if tries[one.call.step] < 4:
            raise WrongState("open", reason=ATTEMPT_OPEN)
        if one.call.step == 2:
            raise WrongState("settled", reason=ATTEMPT_SETTLED)

    async with running(send, results) as reports:
        reports.note(report(1))
        reports.note(report(2))
        await until(results, 2)
    assert results == {"TAKEN": 1, ATTEMPT_SETTLED: 1}
    assert tries == {1: 4, 2: 4}


async def test_a_slow_report_holds_up_no_other() -> None:
    results = Counter[str]()

    async def send(one: UsageReport) -> None:
        if one.call.step == 1:
            await asyncio.Event().wait()

    async with running(send, results) as reports:
        for step in range(1, 6):
            reports.note(report(step))
        await until(results, 4)
    assert results == {"TAKEN": 4}


async def test_a_report_that_is_too_old_or_too_many_is_dropped() -> None:
    results = Counter[str]()

    async def send(_one: UsageReport) -> None:
        raise Unavailable("away")

    async with running(send, results, tried_seconds=0.0) as reports:
        for step in range(30):
            reports.note(report(step))
        await until(results, 30)
    assert results == {"DROPPED": 10, "UNAVAILABLE": 20}


async def test_close_sends_waiting_reports() -> None:
    results, sent = Counter[str](), list[int]()

    async def send(one: UsageReport) -> None:
        sent.append(one.call.step)
        if one.call.step == 3:
            await asyncio.Event().wait()

    reports = UsageReports(send, lambda result: results.update([result]), max_waiting=20, tried_seconds=60.0)
    for step in range(1, 4):
        reports.note(report(step))
    await reports.try_once(0.5)
    assert sorted(sent) == [1, 2, 3]
    assert results == {"TAKEN": 2}


def test_runners_try_as_long_as_a_task_may_live() -> None:
    """Its task may be queued until its deadline, and only then is the call settled."""
    assert REPORTS_TRIED_SECONDS >= MAX_TIMEOUT_SECONDS
