"""The two ways to load the ledger, against a ledger that only counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.commit_loads import BODY_BYTES, closed_loop, fact, random_arrivals
from bench.held_tasks import HeldTask
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import token_pb2


class CountingLedger:
    """Answers after a moment, and refuses what no ledger would take."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.in_flight = self.most_in_flight = 0

    async def commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        task = request.token.claims
        assert request.commit_number == self.numbers.get(task, 0) + 1, "a commit was sent before the one before it"
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        self.numbers[task] = request.commit_number
        return pb.CommitResponse(sequence=request.known_sequence + len(request.entries))


@pytest.fixture
def tasks() -> Any:
    return [HeldTask(f"task-{number}", token_pb2.FencingToken(claims=b"%d" % number), 2) for number in range(4)]


async def test_in_a_closed_loop_each_writer_has_one_commit_in_flight(tasks: Any) -> None:
    ledger = CountingLedger()
    run = await closed_loop(ledger.commit, tasks, 0.1)
    assert ledger.most_in_flight == len(tasks)
    assert len(run.latencies) == sum(ledger.numbers.values())
    assert [task.sequence - 2 for task in tasks] == [ledger.numbers[task.token.claims] for task in tasks]
    assert run.per_second == len(run.latencies) / run.seconds


async def test_arrivals_wait_for_nobody_but_a_free_task(tasks: Any) -> None:
    ledger = CountingLedger()
    run = await random_arrivals(ledger.commit, tasks, per_second=20_000, seconds=0.1)
    assert ledger.most_in_flight == len(tasks)
    assert len(run.latencies) == sum(ledger.numbers.values())
    assert max(run.latencies) > 0.05, "the wait for a free task counts"


def test_a_fact_has_five_kilobytes() -> None:
    assert len(fact().body.user_message.text) == BODY_BYTES
