"""A model runner and the ledger's stops: what was not sent is not sent; what was sent goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from tenure.v1 import admin_service_pb2 as admin_pb
from tests.conformance.test_models_calls import slow
from tests.conformance.test_models_settled import calling, of_runner, runner_of
from tests.conformance.test_models_waiting import LONG_SECONDS, accepted, attempts
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint
from tests.support.fix_models import StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.patience import PATIENCE_SECONDS

EVERYTHING: dict[str, Any] = {"all": True, "reason": "wrong bills", "actor": "user/ann"}


async def confirmed(replica: Checkpoint) -> None:
    """Returns when every reader keeps to the newest stops."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await _listed(replica)).late_readers:
            await asyncio.sleep(0.02)


async def _listed(replica: Checkpoint) -> Any:
    return await replica.stub.ListStops(admin_pb.ListStopsRequest(), timeout=TIMEOUT_SECONDS)


async def known(replica: Checkpoint) -> None:
    """Returns when a model runner reads the stops of this ledger."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await replica.query("select reader from ledger.stop_readers"):
            await asyncio.sleep(0.02)


async def test_call_that_waits_for_a_limit_is_not_sent(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl
) -> None:
    replica = await checkpoint()
    runner = await runner_of(replica, model_runner)
    await known(replica)
    first, waiting = [await replica.claim((await replica.create()).task_id, joins=True) for _ in range(2)]
    simulator.order_fault(status=429, retry_after_seconds=LONG_SECONDS, count=1)
    assert (await runner.generate(of_runner(first)).ended()).failure.error_class == "RATE_LIMITED"
    call = await accepted(runner, of_runner(waiting))
    await replica.stub.BeginStop(admin_pb.BeginStopRequest(**EVERYTHING), timeout=TIMEOUT_SECONDS)
    assert (await call.ended()).failure.error_class == "INTERRUPTED"
    await confirmed(replica)
    assert attempts(simulator, of_runner(waiting)) == []


async def test_call_that_comes_after_a_stop_is_not_sent(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl
) -> None:
    """Its tokens were reserved before: its worker was slow. A call that was sent before goes on."""
    replica = await checkpoint()
    runner = await runner_of(replica, model_runner)
    await known(replica)
    slow(simulator)
    _, running = await calling(replica, runner)
    late = await replica.claim((await replica.create()).task_id, joins=True)
    await replica.stub.BeginStop(admin_pb.BeginStopRequest(**EVERYTHING), timeout=TIMEOUT_SECONDS)
    await confirmed(replica)
    ended = (await runner.generate(of_runner(late)).ended()).failure
    assert (ended.error_class, ended.retryable, ended.usage.input_tokens) == ("INTERRUPTED", True, 0)
    assert attempts(simulator, of_runner(late)) == []
    assert (await running.ended()).HasField("answer")
