"""Laws of sessions: who keeps claims, who loses them, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from devstack.etcd import EtcdProcess
from tenure.domain.effect_keys import TaskScopes
from tenure.domain.errors import InvalidRequest, StaleEpoch, Unavailable
from tenure.domain.states import ReleaseReason
from tenure.runtime.security.signing import write_key_pair
from tenure.v1 import task_pb2
from tenure.wire.common import unix_seconds
from tenure.wire.token import read_claims
from tests.conformance.test_coordinator_silence import renewals
from tests.support.fix_coordinator import SHORT_LIFE, Fleet, epoch_of
from tests.support.patience import LONG_LIFE_SECONDS, PATIENCE_SECONDS, SHORT_LIFE_SECONDS

QUEUED, SUCCEEDED = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_SUCCEEDED


async def test_a_task_is_granted_opened_and_released(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    assert (grant.task_id, grant.loop) == (task_id, "messages")
    [claim] = await fleet.claims(replica)
    assert (claim.task_id, claim.claim_id, claim.epoch) == (task_id, grant.claim_id, epoch_of(grant.token))
    assert claim.worker_id == worker.hello.worker_id
    assert 0 < claim.remaining.seconds <= LONG_LIFE_SECONDS
    [listed] = await fleet.workers(replica)
    assert (listed.worker_id, listed.session_id, listed.claim_count) == ("worker-1", worker.session_id, 1)
    await worker.succeed(grant)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await fleet.claims(replica):
            await asyncio.sleep(0.02)
    assert (await fleet.task(task_id)).state == SUCCEEDED


async def test_a_broken_stream_releases_its_tasks_after_the_grace(fleet: Fleet) -> None:
    replica = await fleet.coordinator(ttl_seconds="300")
    first = await fleet.worker(replica)
    task_id = await fleet.submit()
    lost = await first.next_grant()
    await first.open(lost)
    second = await fleet.worker(replica)
    broke_at = asyncio.get_running_loop().time()
    await first.break_off()
    grant = await second.next_grant()
    took_seconds = asyncio.get_running_loop().time() - broke_at
    assert took_seconds >= 0.5
    assert grant.task_id == task_id
    assert epoch_of(grant.token) > epoch_of(lost.token)
    await second.open(grant)
    lost_claim, opened = (await fleet.transitions(task_id))[-2:]
    assert (lost_claim.reason, opened.reason) == ("WORKER_LOST", "OPENED")
    assert (lost_claim.lease_end.worker_id, lost_claim.lease_end.epoch) == ("worker-1", epoch_of(lost.token))
    assert lost_claim.lease_end.HasField("loss_time")
    with pytest.raises(StaleEpoch):
        await first.commit(lost, 1, transition={"to_state": SUCCEEDED, "reason": "FINAL_ANSWER"})


async def test_a_reattachment_within_the_grace_keeps_the_claim(fleet: Fleet) -> None:
    replica = await fleet.coordinator(reconnect_grace_seconds=str(SHORT_LIFE_SECONDS))
    worker = await fleet.worker(replica)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await worker.break_off()
    again = fleet.keep(await worker.reattach())
    assert (again.session_id, again.lost) == (worker.session_id, [])
    await replica.logged("a worker attached to another coordinator")
    [claim] = await fleet.claims(replica, task_id)
    assert claim.claim_id == grant.claim_id
    await again.commit(grant, 1, transition={"to_state": SUCCEEDED, "reason": "FINAL_ANSWER"})


@pytest.mark.faults
async def test_a_reattached_worker_keeps_its_claim_after_a_late_end(
    fleet: Fleet,
) -> None:
    first, second = await fleet.coordinator(id="first"), await fleet.coordinator(id="second")
    worker = await fleet.worker(first)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    again = fleet.keep(await worker.reattach(second.address))
    await worker.break_off()
    assert (again.session_id, again.lost) == (worker.session_id, [])
    await first.logged("a worker attached to another coordinator")
    await again.hears("renewed")
    [listed] = await fleet.workers(first)
    assert listed.coordinator_id == "second"
    [claim] = await fleet.claims(first, task_id)
    assert claim.claim_id == grant.claim_id
    await again.commit(grant, 1, transition={"to_state": SUCCEEDED, "reason": "FINAL_ANSWER"})
    assert (await fleet.task(task_id)).claim_count == 1


@pytest.mark.faults
async def test_a_late_reattachment_returns_the_lost_claims(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    await worker.break_off()
    await replica.logged("ended a session")
    again = fleet.keep(await worker.reattach())
    assert again.session_id != worker.session_id
    assert again.lost == [grant.claim_id]


async def test_a_frozen_worker_loses_its_claim_when_its_ttl_has_passed(fleet: Fleet) -> None:
    replica = await fleet.coordinator(**SHORT_LIFE)
    frozen = await fleet.worker(replica)
    task_id = await fleet.submit()
    lost = await frozen.next_grant()
    await frozen.open(lost)
    other = await fleet.worker(replica)
    await renewals(frozen, 3)
    frozen.freeze()
    frozen_at = asyncio.get_running_loop().time()
    grant = await other.next_grant()
    # Some 6.5 s, as etcd looks for dead leases every half second; nothing else that is waited for here is so short.
    assert asyncio.get_running_loop().time() - frozen_at < 30
    assert grant.task_id == task_id
    assert epoch_of(grant.token) > epoch_of(lost.token)
    await other.open(grant)
    lost_claim, opened = (await fleet.transitions(task_id))[-2:]
    assert (lost_claim.reason, opened.reason) == ("LEASE_EXPIRED", "OPENED")
    end = lost_claim.lease_end
    assert (end.worker_id, end.epoch) == ("worker-1", epoch_of(lost.token))
    times = [unix_seconds(each) for each in end.renewal_times]
    assert end.renewal_count >= len(times) >= 1
    assert times == sorted(times)
    assert unix_seconds(end.loss_time) - times[-1] > SHORT_LIFE_SECONDS - 1
    assert not end.HasField("unanswered_time")
    ended = await frozen.ends()
    assert isinstance(ended, Unavailable)
    assert ended.reason == "SESSION_EXPIRED"


async def test_a_drained_worker_releases_and_detaches_without_grace(fleet: Fleet) -> None:
    replica = await fleet.coordinator(ttl_seconds="300", reconnect_grace_seconds="200")
    worker, other = await fleet.worker(replica), None
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    other = await fleet.worker(replica)
    await worker.drain()
    await worker.commit(grant, 1, transition={"to_state": QUEUED, "reason": "WORKER_DRAINED"})
    await worker.release(grant, "WORKER_DRAINED")
    await worker.close()
    assert (await other.next_grant()).task_id == task_id
    await replica.logged("ended a session")


@pytest.mark.parametrize(
    "reason", [ReleaseReason.WORKER_CRASHED, pytest.param(ReleaseReason.WORKER_HALTED, marks=pytest.mark.faults)]
)
async def test_a_released_task_goes_to_another_worker_with_its_reason(fleet: Fleet, reason: Any) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica, slots=1)
    task_id = await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    other = await fleet.worker(replica)
    await worker.report_slots(0)
    await worker.release(grant, reason)
    again = await other.next_grant()
    assert again.task_id == task_id
    await other.open(again)
    assert [each.reason for each in await fleet.transitions(task_id)][-2:] == [reason, "OPENED"]
    with pytest.raises(StaleEpoch):
        await worker.commit(grant, 1, transition={"to_state": SUCCEEDED, "reason": "FINAL_ANSWER"})


@pytest.mark.faults
async def test_a_release_with_an_unknown_reason_ends_the_stream(fleet: Fleet) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.release(grant, "BORED")
    ended = await worker.ends()
    assert isinstance(ended, InvalidRequest)
    assert [violation.field for violation in ended.violations] == ["release.reason"]


async def test_a_draining_replica_sends_workers_away_with_their_claims(fleet: Fleet) -> None:
    first, second = await fleet.coordinator(), await fleet.coordinator()
    worker = await fleet.worker(first)
    await fleet.submit()
    grant = await worker.next_grant()
    await worker.open(grant)
    stopping = asyncio.create_task(first.stop())
    await worker.hears("goaway")
    again = fleet.keep(await worker.reattach(second.address))
    await worker.break_off()
    assert await stopping == 0
    assert again.lost == []
    await again.hears("renewed")
    [claim] = await fleet.claims(second)
    assert claim.claim_id == grant.claim_id


async def test_a_new_signing_key_gives_new_tokens_of_the_same_epoch(fleet: Fleet, tmp_path: Path) -> None:
    replica = await fleet.coordinator()
    worker = await fleet.worker(replica)
    talk = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONVERSATION, source_id="talk")
    task_id = await fleet.submit(source=talk)
    grant = await worker.next_grant()
    write_key_pair(tmp_path / "next.json", fleet.verifying_keys, "test-2")
    (tmp_path / "next.json").replace(fleet.signing_key)
    await replica.logged("signing with another key")
    [token] = await worker.hears_tokens()
    assert (token.key_id, grant.token.key_id) == ("test-2", "test-1")
    assert read_claims(token) == read_claims(grant.token)
    assert read_claims(token).scopes == TaskScopes(task_id, "talk")
    assert read_claims(token.provider_token).scopes is None
    keys = {key.key_id: key.active for key in await fleet.signing_keys(replica)}
    assert keys == {"test-1": False, "test-2": True}
    grant.token.CopyFrom(token)
    await worker.succeed(grant)


@pytest.mark.faults
async def test_renewals_are_answered_only_after_etcd(own_fleet: Fleet, own_etcd: EtcdProcess) -> None:
    replica = await own_fleet.coordinator()
    worker = await own_fleet.worker(replica)
    await worker.hears("renewed")
    own_etcd.pause()
    try:
        await replica.logged("a renewal was not answered by etcd")
        answered = sum(each.HasField("renewed") for each in worker.heard)
        await asyncio.sleep(1.2)  # two more renewals are sent meanwhile
        assert sum(each.HasField("renewed") for each in worker.heard) == answered
    finally:
        own_etcd.resume()
