"""Leases and the one stream that keeps them alive."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from services.coordinator.etcd.calls import EtcdUnavailable, EtcdUnclear, LeaseExpired
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import Put, Txn
from services.coordinator.etcd.watch import KeyChanges
from tests.support.fix_etcd import paused, restarted
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

if TYPE_CHECKING:
    from devstack.etcd import EtcdProcess
    from tests.support.fix_etcd import EtcdSpace


async def test_a_keepalive_answers_with_the_ttl(etcd: EtcdSpace) -> None:
    lease = await etcd.client.grant(60)
    assert lease.ttl_seconds == 60
    assert await etcd.client.keep_alive(lease.id) == 60
    assert 58 <= await etcd.client.time_to_live(lease.id) <= 60


async def test_a_keepalive_of_an_expired_lease_fails(etcd: EtcdSpace) -> None:
    lease = await etcd.client.grant(60)
    assert await etcd.client.revoke(lease.id)
    with pytest.raises(LeaseExpired):
        await etcd.client.keep_alive(lease.id)
    with pytest.raises(LeaseExpired):
        await etcd.client.time_to_live(lease.id)
    assert not await etcd.client.revoke(lease.id)


async def test_a_put_under_a_dead_lease_is_refused(etcd: EtcdSpace) -> None:
    lease = await etcd.client.grant(60)
    await etcd.client.revoke(lease.id)
    with pytest.raises(LeaseExpired):
        await etcd.client.put(etcd.key("k"), b"", lease=lease.id)
    assert await etcd.client.get(etcd.key("k")) is None


async def test_grants_and_renewals_keep_the_revision_a_revoke_moves_it(own_etcd: EtcdProcess) -> None:
    async with EtcdClient([own_etcd.endpoint]) as client:
        lease = await client.grant(60)
        before = await client.put(b"/k", b"", lease=lease.id)
        await client.keep_alive(lease.id)
        await client.grant(60)
        assert await client.revision() == before.revision
        await client.revoke(lease.id)
        assert await client.revision() == before.revision + 1


async def test_all_keys_of_a_revoked_lease_vanish_in_one_revision(etcd: EtcdSpace) -> None:
    lease = await etcd.client.grant(60)
    keys = {etcd.key(str(number)) for number in range(100)}
    put = await etcd.client.txn(Txn(then=tuple(Put(key, b"", lease.id) for key in keys)))
    async with aclosing(etcd.client.watch(etcd.prefix, put.revision + 1)) as watch:
        await etcd.client.revoke(lease.id)
        item = await anext(watch)
    assert isinstance(item, KeyChanges)
    assert {change.key_value.key for change in item.changes if change.deleted} == keys
    assert len({change.key_value.mod_revision for change in item.changes}) == 1


async def test_an_unrenewed_lease_expires_with_its_keys(etcd: EtcdSpace) -> None:
    lease = await etcd.client.grant(1)
    put = await etcd.client.put(etcd.key("k"), b"", lease=lease.id)
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(etcd.client.watch(etcd.prefix, put.revision + 1)) as watch:
        item = await anext(watch)
    assert isinstance(item, KeyChanges)
    assert item.changes[0].deleted
    with pytest.raises(LeaseExpired):
        await etcd.client.keep_alive(lease.id)


async def test_concurrent_renewals_get_their_own_answers(etcd: EtcdSpace) -> None:
    leases = await asyncio.gather(*(etcd.client.grant(60 + number % 7) for number in range(300)))
    dead = {lease.id for lease in leases[::10]}
    await asyncio.gather(*(etcd.client.revoke(lease) for lease in dead))
    answers = await asyncio.gather(
        *(etcd.client.keep_alive(lease.id) for lease in leases for _ in range(2)), return_exceptions=True
    )
    for lease, answer in zip([lease for lease in leases for _ in range(2)], answers, strict=True):
        if lease.id in dead:
            assert isinstance(answer, LeaseExpired)
        else:
            assert answer == lease.ttl_seconds


async def test_an_abandoned_renewal_does_not_confuse_the_next(etcd: EtcdSpace) -> None:
    lease, other = await etcd.client.grant(60), await etcd.client.grant(90)
    await etcd.client.keep_alive(lease.id)
    leaving = asyncio.create_task(etcd.client.keep_alive(lease.id))
    await asyncio.sleep(0)  # it has sent its request and waits
    leaving.cancel()
    answers = await asyncio.gather(etcd.client.keep_alive(other.id), etcd.client.keep_alive(lease.id))
    assert tuple(answers) == (90, 60)
    assert leaving.cancelled()


async def test_renewals_go_on_after_etcd_was_killed_and_restarted(own_etcd: EtcdProcess) -> None:
    async with EtcdClient([own_etcd.endpoint]) as client:
        lease = await client.grant(60)
        assert await client.keep_alive(lease.id) == 60
        await restarted(own_etcd)
        assert await client.keep_alive(lease.id, timeout_seconds=CALL_SECONDS) == 60


async def test_an_unanswered_renewal_is_unclear_and_frees_the_stream(own_etcd: EtcdProcess) -> None:
    async with EtcdClient([own_etcd.endpoint], max_pending_renewals=2) as client:
        lease = await client.grant(60)
        await client.keep_alive(lease.id)
        async with paused(own_etcd):
            waiting = [asyncio.create_task(client.keep_alive(lease.id, timeout_seconds=0.5)) for _ in range(2)]
            await asyncio.sleep(0)  # both have sent their requests and wait
            with pytest.raises(EtcdUnavailable, match="2 renewals are pending"):
                await client.keep_alive(lease.id)
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, EtcdUnclear)
        assert await client.keep_alive(lease.id, timeout_seconds=CALL_SECONDS) == 60


async def test_closing_the_client_ends_waiting_renewals(own_etcd: EtcdProcess) -> None:
    client = EtcdClient([own_etcd.endpoint])
    lease = await client.grant(60)
    async with paused(own_etcd):
        waiting = asyncio.create_task(client.keep_alive(lease.id, timeout_seconds=60))
        await asyncio.sleep(0)  # it has sent its request and waits
        await client.aclose()
        with pytest.raises((EtcdUnclear, EtcdUnavailable)):
            await waiting
