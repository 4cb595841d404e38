"""Commits: their guards, their effects and their answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from services.checkpoint.commit import external_entries
from tenure.domain.errors import (
    TOO_MUCH_APPENDED,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    SequenceConflict,
    StaleEpoch,
    WrongState,
)
from tenure.runtime.security.signing import Signer
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.token import sign_task_claims
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    Checkpoint,
    answer,
    entry,
    kinds,
    reserve,
    until_a_session_waits_for_a_lock,
    words,
)
from tests.support.patience import PATIENCE_SECONDS


def intent(call_id: str = "1.0", step: int = 1) -> Any:
    return entry(step, tool_intent=ledger_pb2.ToolIntent(call_id=call_id, tool="t", arguments_json="{}"))


def outcome(call_id: str = "1.0", step: int = 1) -> Any:
    result = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="ok")
    return entry(step, tool_outcome=ledger_pb2.ToolOutcome(call_id=call_id, outcome=result))


async def started(replica: Checkpoint, **spec: Any) -> Any:
    return await replica.claim((await replica.create(**spec)).task_id)


async def test_sequences_are_given_out_without_gaps(replica: Checkpoint) -> None:
    owner = await started(replica)
    for count in (1, 3, 2):
        await owner.commit(*[words() for _ in range(count)])
    assert [one.sequence for one in await replica.entries(owner.task.task_id)] == list(range(1, 10))


async def test_a_repeat_is_answered_byte_for_byte_as_the_first_time(replica: Checkpoint) -> None:
    owner = await started(replica)
    await replica.say(owner.task.task_id, "hello")
    request = owner.request(words(), reserve=reserve())
    first = await owner.send(request)
    assert len(first.foreign_entries) == 1
    await replica.say(owner.task.task_id, "and more")
    assert (await owner.send(request)).SerializeToString(deterministic=True) == first.SerializeToString(
        deterministic=True
    )
    assert kinds(await replica.entries(owner.task.task_id)).count("model_attempt") == 1


async def test_the_same_commit_twice_at_once_is_applied_once(replica: Checkpoint, other_replica: Checkpoint) -> None:
    owner = await started(replica)
    request = owner.request(words())
    answers = await asyncio.gather(
        *[side.stub.Commit(request, timeout=TIMEOUT_SECONDS) for side in (replica, other_replica) for _ in range(4)]
    )
    assert {one.sequence for one in answers} == {4}
    assert (await replica.get(owner.task.task_id)).sequence == 4


async def test_the_closing_commit_is_answered_again_after_the_end(replica: Checkpoint) -> None:
    owner = await started(replica)
    request = owner.request(
        transition=pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="42")
    )
    first = await owner.send(request)
    assert await owner.send(request) == first
    assert (await replica.get(owner.task.task_id)).result == "42"


async def test_a_repeat_with_another_payload_is_a_conflict(replica: Checkpoint) -> None:
    owner = await started(replica)
    request = owner.request(words("one"))
    await owner.send(request)
    changed = owner.request(words("two"), commit_id=request.commit_id, commit_number=1)
    with pytest.raises(SequenceConflict):
        await owner.send(changed)


async def test_a_gap_and_an_old_number_are_conflicts(replica: Checkpoint) -> None:
    owner = await started(replica)
    await owner.commit(words())
    await owner.commit(words())
    for number in (1, 2, 4):
        with pytest.raises(SequenceConflict):
            await owner.send(owner.request(words(), commit_number=number))
    assert (await replica.get(owner.task.task_id)).sequence == 5


async def test_a_commit_after_too_many_external_entries_may_be_retried(
    replica: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4
    monkeypatch.setattr(external_entries, "MAX_ENTRIES", most)
    owner = await started(replica)
    task_id = owner.task.task_id
    for _ in range(most + 1):
        await replica.say(task_id, "hello")
    request = owner.request(words())
    with pytest.raises(SequenceConflict) as refused:
        await owner.send(request)
    assert refused.value.reason == TOO_MUCH_APPENDED
    entries = await replica.entries(task_id)
    assert entries[-1].body.WhichOneof("body") == "user_message"
    request.known_sequence = entries[-1].sequence
    assert (await owner.send(request)).sequence == entries[-1].sequence + 1


async def test_a_commit_that_waited_during_a_fence_raise_is_stale(replica: Checkpoint) -> None:
    owner = await started(replica)
    task_id = owner.task.task_id
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute("select 1 from ledger.tasks where task_id = %s for update", (task_id,))
        waiting = asyncio.create_task(owner.commit(words()))
        await until_a_session_waits_for_a_lock(replica)
        await postgres.execute(
            "update ledger.tasks set granted = granted + 1, granted_claim = 'new', epoch = epoch + 1, claim_id = 'new' "
            "where task_id = %s",
            (task_id,),
        )
    with pytest.raises(StaleEpoch):
        await waiting
    assert (await replica.get(task_id)).sequence == 3


async def test_a_wrong_claim_of_the_right_epoch_is_stale(replica: Checkpoint) -> None:
    owner = await started(replica)
    token, _ = replica.sign(owner.task.task_id, owner.claims.epoch, str(uuid4()))
    with pytest.raises(StaleEpoch):
        await owner.send(owner.request(words(), token=token))


async def test_an_unknown_task_is_not_found(replica: Checkpoint) -> None:
    owner = await started(replica)
    token, _ = replica.sign(str(uuid4()), 1, str(uuid4()))
    with pytest.raises(NotFound):
        await owner.send(owner.request(words(), token=token))


async def test_an_owner_is_stale_while_its_task_is_queued(replica: Checkpoint) -> None:
    owner = await started(replica)
    await replica.requeue(owner)
    with pytest.raises(StaleEpoch):
        await owner.commit(words())


@pytest.mark.parametrize("kind", ["submitted", "transition", "model_attempt", "attempt_lost", "cancel_request"])
async def test_a_worker_may_not_write_the_ledgers_own_entries(replica: Checkpoint, kind: str) -> None:
    owner = await started(replica)
    body = ledger_pb2.EntryBody()
    getattr(body, kind).SetInParent()
    with pytest.raises(InvalidRequest):
        await owner.commit(ledger_pb2.NewEntry(step=1, body=body))


async def test_external_entries_return_with_the_next_commit_once(replica: Checkpoint) -> None:
    owner = await started(replica)
    assert not (await owner.commit(words())).foreign_entries
    await replica.say(owner.task.task_id, "look here")
    foreign_entries = (await owner.commit(words())).foreign_entries
    assert [one.body.user_message.text for one in foreign_entries] == ["look here"]
    assert foreign_entries[0].actor == "alice"
    assert not (await owner.commit(words())).foreign_entries


async def test_a_commit_too_far_behind_must_open_again(replica: Checkpoint) -> None:
    owner = await started(replica)
    await owner.commit(*[words("x" * 200_000) for _ in range(4)])
    await owner.commit(*[words("x" * 200_000) for _ in range(4)])
    with pytest.raises(SequenceConflict):
        await owner.commit(words(), known_sequence=0)
    with pytest.raises(SequenceConflict):
        await owner.commit(words(), known_sequence=1000)


async def test_no_task_ends_while_a_call_has_no_outcome(replica: Checkpoint) -> None:
    owner = await started(replica)
    await owner.commit(intent("1.0"), intent("1.1"))
    for state in (task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_FAILED):
        with pytest.raises(WrongState) as refused:
            await owner.end(state)
        assert refused.value.reason == "OPEN_INTENTS"
    await owner.commit(
        outcome("1.0"),
        outcome("1.1"),
        transition=pb.Transition(to_state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REJECTED"),
    )
    assert (await replica.get(owner.task.task_id)).state == task_pb2.TASK_STATE_FAILED


async def test_a_token_of_another_resource_writes_nothing(replica: Checkpoint) -> None:
    owner = await started(replica)
    claims = replace(owner.claims, resource="leases/backup")
    token = sign_task_claims(Signer.load(replica.keys / "signing.json"), claims, datetime.now(UTC))
    for request in (replica.open(token, claims), owner.commit(words(), token=token)):
        with pytest.raises(PermissionDenied) as refused:
            await request
        assert refused.value.reason == "WRONG_RESOURCE"
    await owner.commit(words())


async def test_an_outcome_needs_an_open_call_and_a_call_is_opened_once(replica: Checkpoint) -> None:
    owner = await started(replica)
    with pytest.raises(InvalidRequest):
        await owner.commit(outcome("1.0"))
    await owner.commit(intent("1.0"))
    with pytest.raises(InvalidRequest):
        await owner.commit(intent("1.0"))
    await owner.commit(outcome("1.0"))
    with pytest.raises(InvalidRequest):
        await owner.commit(outcome("1.0"))


async def test_an_answer_needs_its_open_attempt_and_settles_it(replica: Checkpoint) -> None:
    owner = await started(replica)
    with pytest.raises(InvalidRequest):
        await owner.commit(answer())
    granted = (await owner.commit(reserve=reserve(input_tokens=50, output=20))).reserve.granted
    assert (granted.max_output_tokens, granted.reserved_tokens) == (20, 70)
    with pytest.raises(InvalidRequest):
        await owner.commit(answer(attempt=2))
    budget = (await owner.commit(answer(tokens=15))).budget
    assert (budget.used_tokens, budget.reserved_tokens) == (15, 0)
    assert (await replica.get(owner.task.task_id)).usage.output_tokens == 15


async def test_an_attempt_is_made_once(replica: Checkpoint) -> None:
    owner = await started(replica)
    await owner.commit(reserve=reserve())
    with pytest.raises(InvalidRequest):
        await owner.commit(reserve=reserve(attempt=2))
    await owner.commit(answer())
    with pytest.raises(InvalidRequest):
        await owner.commit(reserve=reserve())
    await owner.commit(reserve=reserve(step=2))


async def test_a_retry_is_parked_until_its_time_and_then_queued(replica: Checkpoint) -> None:
    owner = await started(replica)
    parked = pb.Transition(to_state=task_pb2.TASK_STATE_RETRY_SCHEDULED, reason="MODEL_RATE_LIMITED")
    parked.retry_delay.FromMilliseconds(1)
    response = await owner.commit(transition=parked)
    assert response.state == task_pb2.TASK_STATE_RETRY_SCHEDULED
    async for some in replica.stub.WatchEntries(
        pb.WatchEntriesRequest(task_id=owner.task.task_id, after_sequence=response.sequence), timeout=TIMEOUT_SECONDS
    ):
        assert kinds(some.entries) == ["RETRY_SCHEDULED>QUEUED"]
        break
    with pytest.raises(StaleEpoch):
        await owner.commit(words())


async def test_a_result_may_contain_nul(replica: Checkpoint) -> None:
    owner = await started(replica)
    transition = pb.Transition(
        to_state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REJECTED", message="bad \0 byte", result="a\0b"
    )
    await owner.commit(transition=transition)
    task = await replica.get(owner.task.task_id)
    assert (task.result, task.message) == ("a\0b", "bad \N{REPLACEMENT CHARACTER} byte")


async def test_a_stale_write_is_audited(replica: Checkpoint) -> None:
    owner = await started(replica)
    new = await replica.claim(owner.task.task_id)
    with pytest.raises(StaleEpoch):
        await owner.commit(words())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            request = pb.ListRefusedWritesRequest(task_id=owner.task.task_id)
            refused = (await replica.stub.ListRefusedWrites(request, timeout=TIMEOUT_SECONDS)).refused_writes
            if refused:
                break
            await asyncio.sleep(0.01)
    assert [(one.method, one.presented_epoch, one.current_epoch) for one in refused] == [
        ("Commit", owner.claims.epoch, new.claims.epoch)
    ]
