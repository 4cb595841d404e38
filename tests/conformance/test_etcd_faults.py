"""The errors of calls while etcd is frozen, gone, or led by another member."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from services.coordinator.etcd.calls import EtcdUnavailable, EtcdUnclear
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.watch import KeyChanges
from tests.support.fix_etcd import paused
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

if TYPE_CHECKING:
    from devstack.etcd import EtcdProcess
    from tests.support.fix_etcd import EtcdSpace


async def test_a_write_that_a_frozen_etcd_does_not_answer_is_unclear(own_etcd: EtcdProcess) -> None:
    async with EtcdClient([own_etcd.endpoint], timeout_seconds=0.5) as client:
        await client.put(b"/k", b"before")
        async with paused(own_etcd):
            with pytest.raises(EtcdUnclear):
                await client.put(b"/k", b"frozen")
            with pytest.raises(EtcdUnclear):
                await client.grant(5)
            with pytest.raises(EtcdUnavailable):
                await client.get(b"/k")
        held = await client.get(b"/k", timeout_seconds=CALL_SECONDS)
        # Either is possible, which is why it was called unclear.
        assert held is not None
        assert held.value in {b"before", b"frozen"}


async def test_without_etcd_a_write_is_unclear_and_a_read_unavailable(closed_port: int) -> None:
    async with EtcdClient([f"127.0.0.1:{closed_port}"]) as client:
        with pytest.raises(EtcdUnclear):
            await client.put(b"/k", b"")
        with pytest.raises(EtcdUnavailable):
            await client.get(b"/k")
        with pytest.raises(EtcdUnavailable):
            await client.status()
        with pytest.raises(EtcdUnclear):
            await client.keep_alive(1)


async def test_a_read_continues_at_a_live_member(etcd: EtcdSpace, closed_port: int) -> None:
    await etcd.client.put(etcd.key("k"), b"v")
    async with EtcdClient([f"127.0.0.1:{closed_port}", etcd.endpoint]) as client:
        held = await client.get(etcd.key("k"))
        assert held is not None
        assert client.endpoints.current.target == etcd.endpoint


async def test_a_write_is_sent_once_and_the_next_to_another_member(etcd: EtcdSpace, closed_port: int) -> None:
    async with EtcdClient([f"127.0.0.1:{closed_port}", etcd.endpoint]) as client:
        with pytest.raises(EtcdUnclear):
            await client.put(etcd.key("k"), b"1")
        assert await client.get(etcd.key("k")) is None
        await client.put(etcd.key("k"), b"2")
        held = await client.get(etcd.key("k"))
        assert held is not None
        assert held.version == 1


async def test_a_renewal_continues_at_a_live_member(etcd: EtcdSpace, closed_port: int) -> None:
    lease = await etcd.client.grant(60)
    async with EtcdClient([f"127.0.0.1:{closed_port}", etcd.endpoint]) as client:
        assert await client.keep_alive(lease.id) == 60


async def _leader(members: list[EtcdProcess]) -> EtcdProcess:
    for member in members:
        async with EtcdClient([member.endpoint]) as client:
            if (await client.status()).is_leader:
                return member
    raise AssertionError("no leader")


@pytest.mark.parametrize("fault", first(["kill", "pause"]))
async def test_a_lost_leader_costs_seconds_and_no_change(etcd_cluster: list[EtcdProcess], fault: str) -> None:
    leader = await _leader(etcd_cluster)
    # The leader is the first to be asked: the worst case.
    members = sorted(etcd_cluster, key=lambda member: member is not leader)
    async with EtcdClient([member.endpoint for member in members], timeout_seconds=2) as client:
        lease = await client.grant(30)
        start = await client.revision() + 1
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.watch(b"/", start)) as watch:
            await client.put(b"/k", b"before", lease=lease.id)
            assert isinstance(await anext(watch), KeyChanges)
            getattr(leader, fault)()
            while True:
                try:
                    after = await client.put(b"/k", b"after", lease=lease.id)
                    break
                except (EtcdUnclear, EtcdUnavailable):
                    continue  # each one takes until its deadline or a refused connection; the test has its own
            seen = 0
            async for item in watch:
                seen = item.revision if isinstance(item, KeyChanges) else seen
                if seen == after.revision:
                    break
            assert await client.keep_alive(lease.id, timeout_seconds=CALL_SECONDS) == 30
            held = await client.get(b"/k")
            assert held is not None
            assert held.mod_revision == after.revision
