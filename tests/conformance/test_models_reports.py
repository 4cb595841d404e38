"""The model runner reports the usage of a call whose end may not be in the ledger, and of no other call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tenure.v1 import checkpoint_service_pb2 as pb
from tests.conformance.test_models_calls import SLOW, slow
from tests.support.fix_models import StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants
from tests.support.patience import PATIENCE_SECONDS

QUIET_SECONDS = 10.0
"""How long an end waits before it is reported: long enough for the next call on a loaded machine."""


class ReportReceiver:
    """The ledger's method for reports, which keeps what it gets."""

    def __init__(self) -> None:
        self.address = ""
        self.reports: asyncio.Queue[tuple[int, int, int]] = asyncio.Queue()

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.unary_unary_rpc_method_handler(
            self._take,
            request_deserializer=pb.ReportUsageRequest.FromString,
            response_serializer=pb.ReportUsageResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("tenure.v1.CheckpointService", {"ReportUsage": method})

    async def _take(self, request: pb.ReportUsageRequest, _context: Any) -> pb.ReportUsageResponse:
        self.reports.put_nowait((request.step, request.attempt_number, request.usage.output_tokens))
        return pb.ReportUsageResponse()

    async def next(self) -> tuple[int, int, int]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reports.get()


@pytest.fixture
async def ledger() -> AsyncIterator[ReportReceiver]:
    server, receiver = grpc.aio.server(), ReportReceiver()
    server.add_generic_rpc_handlers((receiver.handler(),))
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield receiver
    await server.stop(None)


async def test_a_received_end_is_reported_without_a_next_call(
    model_runner: StartModels, grants: Grants, ledger: ReportReceiver
) -> None:
    """Its reader may have died before it committed the end, and then the task may have been cancelled."""
    runner = await model_runner(checkpoint_address=ledger.address, report_seconds=0.1)
    end = await runner.generate(grants.claim()).ended()
    assert await ledger.next() == (1, 1, end.answer.usage.output_tokens)


async def test_the_next_call_of_its_reader_proves_the_commit(
    model_runner: StartModels, grants: Grants, ledger: ReportReceiver
) -> None:
    runner = await model_runner(checkpoint_address=ledger.address, report_seconds=QUIET_SECONDS)
    owner = grants.claim()
    await runner.generate(owner, 1).ended()
    await runner.generate(owner, 2).ended()
    assert (await ledger.next())[:2] == (2, 1)
    assert ledger.reports.empty()


async def test_the_next_call_of_another_owner_proves_nothing(
    model_runner: StartModels, grants: Grants, ledger: ReportReceiver
) -> None:
    runner = await model_runner(checkpoint_address=ledger.address, report_seconds=QUIET_SECONDS)
    owner = grants.claim()
    await runner.generate(owner, 1).ended()
    await runner.generate(grants.claim(owner.task_id, epoch=11), 2).ended()
    assert [(await ledger.next())[:2] for _ in range(2)] == [(1, 1), (2, 1)]


async def test_a_call_without_a_reader_is_reported_as_billed(
    model_runner: StartModels, grants: Grants, ledger: ReportReceiver, simulator: SimulatorControl
) -> None:
    slow(simulator, 1500)
    runner = await model_runner(checkpoint_address=ledger.address, report_seconds=0.1)
    await (await runner.generate(grants.claim(), **SLOW).speaking()).disconnect()
    reported = await ledger.next()
    (billed,) = simulator.calls()
    assert billed["ending"] == "complete"
    assert reported == (1, 1, billed["output_tokens"])


async def test_a_drained_runner_reports_before_it_ends(
    model_runner: StartModels, grants: Grants, ledger: ReportReceiver, simulator: SimulatorControl
) -> None:
    slow(simulator, 60_000)
    runner = await model_runner(checkpoint_address=ledger.address, drain_seconds=0.5)
    await runner.generate(grants.claim(), **SLOW).speaking()
    assert await runner.process.stop() == 0
    assert (await ledger.next())[:2] == (1, 1)


@pytest.mark.faults
async def test_a_drained_runner_reports_calls_that_later_ones_replaced(
    model_runner: StartModels, grants: Grants, ledger: ReportReceiver
) -> None:
    runner = await model_runner(checkpoint_address=ledger.address, report_seconds=600)
    owner = grants.claim()
    await runner.generate(owner, 1).ended()
    await runner.generate(grants.claim(owner.task_id, epoch=11), 2).ended()
    assert await runner.process.stop() == 0
    reported = set[tuple[int, ...]]()
    while reported != {(1, 1), (2, 1)}:  # a report that the end of the process interrupted is sent again
        reported.add((await ledger.next())[:2])
