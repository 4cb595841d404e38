"""Open takes a task over: it raises the fence, settles what the old owner left, and returns the whole history."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tenure.domain.errors import NotFound, SequenceConflict, StaleEpoch, Unauthenticated, WrongState
from tenure.domain.fold import fold
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2, token_pb2
from tenure.wire.ledger import entries_to_domain
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, answer, kinds, reserve, words


async def test_open_runs_the_task_and_returns_its_history(replica: Checkpoint) -> None:
    task = await replica.create()
    owner = await replica.claim(task.task_id, holder="w-1")
    assert owner.task.state == task_pb2.TASK_STATE_RUNNING
    assert (owner.task.owner, owner.task.epoch, owner.task.claim_count) == ("w-1", owner.claims.epoch, 1)
    assert kinds(owner.entries) == ["submitted", ">QUEUED", "QUEUED>RUNNING"]
    assert owner.entries[-1].claim_id == owner.claims.claim_id
    assert owner.next_number == 1


async def test_a_takeover_fences_the_owner_and_writes_two_transitions(replica: Checkpoint) -> None:
    old = await replica.claim((await replica.create()).task_id)
    await old.commit(words())
    new = await replica.claim(old.task.task_id, holder="w-2")
    assert kinds(new.entries)[-2:] == ["RUNNING>QUEUED", "QUEUED>RUNNING"]
    assert new.task.claim_count == 2
    with pytest.raises(StaleEpoch) as refused:
        await old.commit(words())
    assert (refused.value.presented, refused.value.current) == (old.claims.epoch, new.claims.epoch)
    await new.commit(words())


async def test_a_takeover_settles_a_lost_model_attempt_once(replica: Checkpoint) -> None:
    old = await replica.claim((await replica.create()).task_id)
    await old.commit(reserve=reserve(input_tokens=70, output=30))
    new = await replica.claim(old.task.task_id)
    assert kinds(new.entries)[-3:] == ["attempt_lost", "RUNNING>QUEUED", "QUEUED>RUNNING"]
    assert new.entries[-3].body.attempt_lost.usage.input_tokens == 70
    assert (new.task.budget.used_tokens, new.task.budget.reserved_tokens) == (70, 0)
    newest = await replica.claim(old.task.task_id)
    assert kinds(newest.entries).count("attempt_lost") == 1
    assert newest.task.budget.used_tokens == 70
    assert await replica.query(
        "select lost, input_tokens from ledger.token_usage where tenant = %s", replica.tenant
    ) == [(True, 70)]


async def test_the_current_claim_may_open_again(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(words())
    again = await replica.open(owner.token, owner.claims)
    assert again.next_number == 2
    assert again.task.claim_count == 1
    assert kinds(again.entries) == ["submitted", ">QUEUED", "QUEUED>RUNNING", "user_message"]
    await again.commit(words())


async def test_a_claim_that_is_not_registered_opens_nothing(replica: Checkpoint) -> None:
    task = await replica.create()
    with pytest.raises(StaleEpoch):
        await replica.open(*replica.sign(task.task_id, 5, str(uuid4())))
    assert (await replica.get(task.task_id)).state == task_pb2.TASK_STATE_QUEUED


async def test_an_equal_epoch_of_another_claim_opens_nothing(replica: Checkpoint) -> None:
    task = await replica.create()
    _, claims = await replica.grant(task.task_id)
    with pytest.raises(StaleEpoch):
        await replica.open(*replica.sign(task.task_id, claims.epoch, str(uuid4())))


async def test_a_superseded_grant_opens_nothing(replica: Checkpoint) -> None:
    task = await replica.create()
    first = await replica.grant(task.task_id)
    await replica.grant(task.task_id)
    with pytest.raises(StaleEpoch):
        await replica.open(*first)


async def test_a_claim_that_lost_its_task_does_not_open_it_again(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    assert await replica.requeue(owner) == [owner.task.task_id]
    with pytest.raises(StaleEpoch):
        await replica.open(owner.token, owner.claims)


async def test_an_ended_task_is_not_opened_and_its_fence_stays(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.end()
    with pytest.raises(WrongState) as refused:
        await replica.claim(owner.task.task_id)
    assert refused.value.metadata == {"state": "SUCCEEDED"}
    assert (await replica.get(owner.task.task_id)).epoch == owner.claims.epoch


async def test_an_open_of_an_unknown_or_foreign_task_is_not_found(replica: Checkpoint) -> None:
    task = await replica.create()
    _, claims = await replica.grant(task.task_id)
    with pytest.raises(NotFound):
        await replica.open(*replica.sign(task.task_id, claims.epoch, claims.claim_id, tenant="others"))
    with pytest.raises(NotFound):
        await replica.open(*replica.sign(str(uuid4()), 1, str(uuid4())))


async def test_a_forged_token_is_refused(replica: Checkpoint) -> None:
    task = await replica.create()
    token, claims = await replica.grant(task.task_id)
    forged = token_pb2.FencingToken(claims=token.claims, key_id=token.key_id, signature=bytes(64))
    with pytest.raises(Unauthenticated):
        await replica.open(forged, claims)


async def test_opens_at_once_of_one_claim_agree(replica: Checkpoint, other_replica: Checkpoint) -> None:
    task = await replica.create()
    token, claims = await replica.grant(task.task_id)
    owners = await asyncio.gather(*[side.open(token, claims) for side in (replica, other_replica) for _ in range(5)])
    assert {owner.task.sequence for owner in owners} == {3}
    assert {owner.next_number for owner in owners} == {1}


async def test_a_long_history_comes_in_pages_under_a_mebibyte(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    for _ in range(12):
        await owner.commit(*[words("x" * 40_000) for _ in range(20)])
    sizes, sequences = [], []
    async for part in replica.stub.Open(pb.OpenRequest(token=owner.token), timeout=TIMEOUT_SECONDS):
        sizes.append(part.ByteSize())
        sequences += [entry.sequence for entry in part.page.entries]
    assert sequences == list(range(1, 3 + 240 + 1))
    assert max(sizes) < 1024 * 1024


async def test_the_history_folds_to_the_snapshot(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(goal="sum")).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(text="42"))
    new = await replica.claim(owner.task.task_id)
    point = fold(entries_to_domain(new.entries))
    assert (point.sequence, point.state.value, point.step) == (new.task.sequence, "RUNNING", new.task.step)
    assert point.open_attempt is None
    assert point.last_text == "42"


async def test_an_open_settles_its_own_open_attempt(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    again = await replica.open(owner.token, owner.claims)
    assert kinds(again.entries)[-1] == "attempt_lost"
    with pytest.raises(SequenceConflict):
        await owner.commit(answer(), commit_number=1)
