"""The model runner stops a call once the ledger has settled its attempt, and no other call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.v1 import checkpoint_service_pb2 as pb
from tests.conformance.test_ledger_usage_reports import bills
from tests.conformance.test_models_calls import SLOW, slow
from tests.conformance.test_models_outcomes import until
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, reserve
from tests.support.fix_checkpoint import Owner as LedgerOwner
from tests.support.fix_models import ModelReplica, ReadCall, StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants, Owner
from tests.support.patience import PATIENCE_SECONDS

LONG_MS = 300_000


async def runner_of(replica: Checkpoint, model_runner: StartModels, **settings: object) -> ModelReplica:
    """A runner that asks this ledger."""
    keys = replica.keys / "verifying.json"
    return await model_runner(checkpoint_address=replica.address, verifying_keys_file=keys, **settings)


async def calling(replica: Checkpoint, runner: ModelReplica) -> tuple[LedgerOwner, ReadCall]:
    """An owner with a call at the runner, whose answer has begun."""
    owner = await replica.claim((await replica.create()).task_id, joins=True)
    await owner.commit(reserve=reserve(input_tokens=5000, output=1000, outlives=True))
    return owner, await runner.generate(of_runner(owner), **SLOW).speaking()


def of_runner(owner: LedgerOwner) -> Owner:
    """The same claim, as the runner's requests name it."""
    return Owner(owner.task.task_id, owner.claims.epoch, owner.token)


async def reported_bill(replica: Checkpoint, task_id: str) -> Any:
    """The bill of the only call, once a report has corrected it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            (bill,) = await bills(replica, task_id)
            if bill.HasField("estimated_usage"):
                return bill
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["cancel", "direct takeover"])
async def test_a_settled_call_is_stopped_and_billed(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl, how: str
) -> None:
    """The provider would answer for minutes."""
    slow(simulator, LONG_MS)
    replica = await checkpoint()
    runner = await runner_of(replica, model_runner)
    owner, call = await calling(replica, runner)
    await call.disconnect()
    assert await replica.requeue(owner)
    if how == "cancel":
        await replica.cancel(owner.task.task_id)
    else:
        await replica.claim(owner.task.task_id)
    await until(lambda: bool(simulator.calls()))
    assert [request["ending"] for request in simulator.calls()] == ["abandoned"]
    bill = await reported_bill(replica, owner.task.task_id)
    assert bill.estimated_usage.input_tokens == 5000
    assert bill.usage.input_tokens == simulator.calls()[0]["input_tokens"]
    assert 0 < bill.usage.output_tokens < 1000


async def test_a_call_is_stopped_though_a_stale_owner_reads_it(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl
) -> None:
    slow(simulator, LONG_MS)
    replica = await checkpoint()
    owner, call = await calling(replica, await runner_of(replica, model_runner))
    assert await replica.requeue(owner)
    await replica.cancel(owner.task.task_id)
    assert (await call.ended()).failure.error_class == "INTERRUPTED"


@pytest.mark.faults
async def test_an_open_or_unknown_call_is_not_stopped(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl, grants: Grants
) -> None:
    """The third call is settled after the two: when it has ended, the runner has asked for all three."""
    slow(simulator, LONG_MS)
    replica = await checkpoint()
    runner = await runner_of(replica, model_runner)
    queued, call = await calling(replica, runner)
    assert await replica.requeue(queued)
    unreserved = await replica.claim((await replica.create()).task_id, joins=True)
    unknown = await runner.generate(of_runner(unreserved), **SLOW).speaking()
    cancelled, settled = await calling(replica, runner)
    assert await replica.requeue(cancelled)
    await replica.cancel(cancelled.task.task_id)
    assert (await settled.ended()).failure.error_class == "INTERRUPTED"
    joiner = await replica.claim(queued.task.task_id, joins=True)
    joined = await runner.generate(of_runner(joiner), **SLOW).speaking()
    assert joined.state.joined
    assert [one.is_over for one in (call, unknown, joined)] == [False, False, False]


async def test_a_batch_of_calls_is_decided_in_order(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owner = await replica.claim((await replica.create()).task_id, joins=True)
    await owner.commit(reserve=reserve(outlives=True))
    assert await replica.requeue(owner)
    await replica.cancel(owner.task.task_id)
    other = await replica.claim((await replica.create()).task_id, joins=True)
    await other.commit(reserve=reserve(outlives=True))
    wanted = [(other, 1, 1), (owner, 1, 1), (owner, 1, 2), (owner, 2, 1)]
    calls = [
        pb.InspectModelCallsRequest.ModelCall(task_id=one.task.task_id, step=step, attempt_number=number)
        for one, step, number in wanted
    ]
    answer = await replica.stub.InspectModelCalls(pb.InspectModelCallsRequest(calls=calls), timeout=PATIENCE_SECONDS)
    assert [verdict.settled for verdict in answer.verdicts] == [False, True, False, False]
