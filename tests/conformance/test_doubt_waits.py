"""Tasks that wait for a word on a call in doubt whose outcome comes late after all: they go on by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.coordinator import in_doubt_waits
from services.coordinator.in_doubt_waits import InDoubtWaits
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.tools_client import ToolsClient
from tenure.domain.in_doubt import AttemptStatus, CallInDoubt, nothing_in_doubt
from tenure.domain.tools import CallState, OutcomeStatus
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, MakeCheckpoint, answer, entry, reserve
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools, appear
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
UNSAFE = "append_record_unsafe"
WAITING_USER, QUEUED = task_pb2.TASK_STATE_WAITING_USER, task_pb2.TASK_STATE_QUEUED


async def waiting(replica: Any, calls: Any = (("1.0", 1),)) -> Any:
    """A task that waits for a word on these calls, and its last owner."""
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    intents = [
        entry(1, tool_intent=ledger_pb2.ToolIntent(call_id=call_id, tool=UNSAFE, arguments_json="{}"))
        for call_id, _ in calls
    ]
    await owner.commit(answer(), *intents)
    in_doubt = [tool_pb2.CallInDoubt(call_id=call_id, call_attempt=attempt) for call_id, attempt in calls]
    move = pb.Transition(to_state=WAITING_USER, reason="TOOL_IN_DOUBT", calls_in_doubt=in_doubt)
    await owner.commit(transition=move)
    return owner


async def offered_waits(replica: Any, limit: int = 100) -> Any:
    answered = await replica.stub.ListDoubtWaits(pb.ListDoubtWaitsRequest(limit=limit), timeout=TIMEOUT_SECONDS)
    return {one.task_id: one for one in answered.waits}


async def put_back(replica: Any, *owners: Any, epoch: int = 0) -> Any:
    settled = [
        pb.RequeueSettledRequest.Settled(task_id=owner.task.task_id, epoch=epoch or owner.claims.epoch)
        for owner in owners
    ]
    answered = await replica.stub.RequeueSettled(pb.RequeueSettledRequest(settled=settled), timeout=TIMEOUT_SECONDS)
    return set(answered.task_ids)


async def test_each_wait_goes_to_one_coordinator_and_again_later(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    owners = [await waiting(replica, (("1.0", 1), ("1.1", 2))) for _ in range(4)]
    shares = await asyncio.gather(*(offered_waits(replica, 2) for _ in range(3)))
    seen = [task_id for share in shares for task_id in share]
    assert sorted(seen) == sorted({owner.task.task_id for owner in owners})
    one = next(wait for share in shares for wait in share.values())  # the last coordinator may get none
    assert one.tenant == "default"
    assert [(call.call_id, call.call_attempt) for call in one.calls] == [("1.0", 1), ("1.1", 2)]
    assert one.epoch == next(owner.claims.epoch for owner in owners if owner.task.task_id == one.task_id)
    assert not await offered_waits(replica)
    await replica.query("update ledger.tasks set doubt_seen_at = now() - interval '2 minutes'")
    assert len(await offered_waits(replica)) == 4


async def test_only_the_wait_that_was_seen_is_ended_and_only_once(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    seen, cancelled, again = [await waiting(replica) for _ in range(3)]
    await replica.cancel(cancelled.task.task_id)
    assert await put_back(replica, again, epoch=again.claims.epoch - 1) == set()
    assert await put_back(replica, seen, cancelled) == {seen.task.task_id}
    assert await put_back(replica, seen) == set()
    task = await replica.get(seen.task.task_id)
    assert (task.state, task.reason, len(task.calls_in_doubt)) == (QUEUED, "CALL_RESOLVED", 0)
    assert (await replica.get(again.task.task_id)).state == WAITING_USER
    transitions = [
        one.body.transition for one in await replica.entries(task.task_id) if one.body.HasField("transition")
    ]
    assert transitions[-1].reason == "CALL_RESOLVED"


def test_a_task_continues_when_none_of_its_calls_is_in_doubt() -> None:
    one, two = CallInDoubt("1.0", 1), CallInDoubt("1.1", 2)
    finished, doubted = AttemptStatus(CallState.FINISHED, 1), AttemptStatus(CallState.IN_DOUBT, 2)
    assert nothing_in_doubt([one], {"1.0": finished})
    assert nothing_in_doubt([one], {"1.0": AttemptStatus(CallState.NOT_RUN, 2)})
    assert nothing_in_doubt([one], {"1.0": doubted})  # of another attempt than it waits for
    assert not nothing_in_doubt([one, two], {"1.0": finished, "1.1": doubted})
    assert not nothing_in_doubt([CallInDoubt("1.0", 0)], {"1.0": doubted})
    assert not nothing_in_doubt([one], {})
    assert not nothing_in_doubt([], {})
    assert not nothing_in_doubt([one], {"1.0": AttemptStatus(CallState.STARTED, 2)})


async def test_a_late_outcome_has_its_task_go_on(
    checkpoint: MakeCheckpoint,
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = await checkpoint()
    monkeypatch.setattr(in_doubt_waits, "_POLL_SECONDS", 0.1)
    frozen = await tool_service(failpoints=f"tools.after_effect=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    late, lost = await waiting(replica), await waiting(replica)
    slept = grants.claim(late.task.task_id, epoch=10)
    frozen.begin(slept, "1.0", UNSAFE, file="a", line="x")
    await appear(tmp_path / "there")
    tools = await tool_service()
    died = await tool_service(failpoints="tools.before_effect=kill9")
    died.begin(grants.claim(lost.task.task_id, epoch=10), "1.0", UNSAFE, file="b", line="x")
    await died.ended()
    for owner, file in ((late, "a"), (lost, "b")):
        outcome = await tools.outcome(grants.claim(owner.task.task_id, epoch=11), "1.0", UNSAFE, file=file, line="x")
        assert outcome.status is OutcomeStatus.IN_DOUBT
    sweeps = [InDoubtWaits(LedgerClient(replica.channel), ToolsClient(tools.channel)) for _ in range(2)]
    duties = [asyncio.create_task(sweep.run()) for sweep in sweeps]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while None in [row[0] for row in await replica.query("select doubt_seen_at from ledger.tasks")]:
                await asyncio.sleep(0.05)
            assert (await replica.get(late.task.task_id)).state == WAITING_USER
            frozen.thaw()
            while (await replica.get(late.task.task_id)).state != QUEUED:
                await asyncio.sleep(0.05)
    finally:
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
    assert (await replica.get(lost.task.task_id)).state == WAITING_USER
    moves = [one for one in await replica.entries(late.task.task_id) if one.body.transition.reason == "CALL_RESOLVED"]
    assert len(moves) == 1
    assert len(outside.lines("a")) == 1
