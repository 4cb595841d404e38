"""A watch misses nothing, or says that it may have."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from devstack.etcd import EtcdProcess, free_ports
from services.coordinator.etcd import stubs
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import Put, Txn
from services.coordinator.etcd.watch import (
    KeyChanges,
    Resync,
    ResyncReason,
    WatchPatience,
    WatchReconnected,
)
from tests.support.fix_etcd import delete_prefix, paused, restarted
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from services.coordinator.etcd.watch import WatchItem
    from tests.support.fix_etcd import EtcdSpace

_IMPATIENT = WatchPatience(idle_seconds=0.3, answer_seconds=0.3)


async def _next_changes(watch: AsyncIterator[WatchItem]) -> KeyChanges:
    """The next changes, over however many reconnections."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for item in watch:
            if isinstance(item, KeyChanges):
                return item
            assert isinstance(item, WatchReconnected)
    raise AssertionError("the watch ended")


async def _values(watch: AsyncIterator[WatchItem], count: int) -> list[bytes]:
    byteses: list[bytes] = []
    while len(byteses) < count:
        byteses += [change.key_value.value for change in (await _next_changes(watch)).changes]
    return byteses


async def test_a_watch_sends_changes_in_order_with_previous_values(etcd: EtcdSpace) -> None:
    key = etcd.key("k")
    start = (await etcd.client.list(etcd.prefix)).revision + 1
    first = await etcd.client.put(key, b"1")
    await etcd.client.put(key, b"2")
    await etcd.client.delete(key)
    async with aclosing(etcd.client.watch(etcd.prefix, start, previous=True)) as watch:
        changes = (await _next_changes(watch)).changes
    assert [(change.deleted, change.key_value.value) for change in changes] == [
        (False, b"1"),
        (False, b"2"),
        (True, b""),
    ]
    assert [change.previous.value if change.previous else None for change in changes] == [None, b"1", b"2"]
    revisions = [change.key_value.mod_revision for change in changes]
    assert revisions[0] == first.revision
    assert revisions == sorted(set(revisions))


async def test_a_watch_sees_its_prefix_only(etcd: EtcdSpace) -> None:
    start = await etcd.client.revision() + 1
    await etcd.client.put(etcd.key("b/1"), b"outside")
    await etcd.client.put(etcd.key("a/1"), b"inside")
    async with aclosing(etcd.client.watch(etcd.key("a/"), start)) as watch:
        assert await _values(watch, 1) == [b"inside"]


async def test_the_changes_of_one_transaction_come_together(etcd: EtcdSpace) -> None:
    start = await etcd.client.revision() + 1
    keys = [etcd.key(str(number)) for number in range(100)]
    result = await etcd.client.txn(Txn(then=tuple(Put(key, bytes(8_000)) for key in keys)))
    async with aclosing(etcd.client.watch(etcd.prefix, start)) as watch:
        item = await _next_changes(watch)
    assert item.revision == result.revision
    assert {change.key_value.key for change in item.changes} == set(keys)


async def test_a_watch_catches_up_on_more_than_one_message(own_etcd: EtcdProcess) -> None:
    """A message above the limit of the channel broke the stream, and each later one too."""
    value = bytes(1_400_000)
    async with EtcdClient([own_etcd.endpoint]) as client:
        for number in range(30):  # 40 MB, and a channel accepts 32 MB
            last = await client.put(b"/k/%d" % number, value, timeout_seconds=CALL_SECONDS)
        async with aclosing(client.watch(b"/k/", 2)) as watch:
            keys: list[bytes] = []
            items = 0
            while len(keys) < 30:
                item = await _next_changes(watch)
                keys += [change.key_value.key for change in item.changes]
                items += 1
        assert keys == [b"/k/%d" % number for number in range(30)]
        assert (item.revision, items > 1) == (last.revision, True)


async def test_the_changes_of_one_revision_stay_together_in_parts(own_etcd: EtcdProcess) -> None:
    """The end of a session deletes thousands of claims at one revision, and a watch gets their former values, too."""
    async with EtcdClient([own_etcd.endpoint]) as client:
        for number in range(6):
            await client.put(b"/k/%d" % number, bytes(1_000_000), timeout_seconds=CALL_SECONDS)
        start = await client.revision() + 1
        await delete_prefix(client, b"/k/")
        after = await client.put(b"/k/new", b"")
        async with aclosing(client.watch(b"/k/", start, previous=True)) as watch:
            items = [await _next_changes(watch)]
            while items[-1].revision < after.revision:
                items.append(await _next_changes(watch))
    by_revision = [[change.key_value.mod_revision for change in item.changes] for item in items]
    assert [revision for item in by_revision for revision in item] == [start] * 6 + [start + 1]
    assert all(len(item.changes) in {1, 6, 7} for item in items)
    assert {len(change.previous.value) for change in items[0].changes if change.previous} == {1_000_000}


async def test_a_watch_without_a_start_is_refused(etcd: EtcdSpace) -> None:
    with pytest.raises(ValueError, match="list first"):
        etcd.client.watch(etcd.prefix, 0)


async def test_a_watch_from_a_compacted_revision_ends_with_a_resync(own_etcd: EtcdProcess) -> None:
    async with EtcdClient([own_etcd.endpoint]) as client:
        for _ in range(3):
            last = await client.put(b"/k", b"")
        await client.endpoints.current.kv.Compact(stubs.CompactionRequest(revision=last.revision), timeout=CALL_SECONDS)
        items = [item async for item in client.watch(b"/", 2)]
        assert items == [Resync(ResyncReason.COMPACTED, last.revision)]


async def test_a_watch_survives_an_etcd_restart_without_a_gap(own_etcd: EtcdProcess) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as client,
        aclosing(client.watch(b"/", 2)) as watch,
    ):
        await client.put(b"/k", b"0")
        assert await _values(watch, 1) == [b"0"]
        await client.put(b"/k", b"1")
        await restarted(own_etcd)
        # Written before the watch is back.
        async with EtcdClient([own_etcd.endpoint]) as fresh:
            for number in range(2, 6):
                await fresh.put(b"/k", b"%d" % number)
        assert await _values(watch, 5) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_reconnected_watch_reports_it(own_etcd: EtcdProcess) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as client,
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(client.watch(b"/", 2)) as watch,
    ):
        put = await client.put(b"/k", b"0")
        assert isinstance(await anext(watch), KeyChanges)
        await restarted(own_etcd)
        assert await anext(watch) == WatchReconnected(put.revision)


async def test_compaction_while_a_watch_is_cut_off_makes_it_resync(own_etcd: EtcdProcess) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as client,
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(client.watch(b"/", 2)) as watch,
    ):
        await client.put(b"/k", b"0")
        assert isinstance(await anext(watch), KeyChanges)
        await restarted(own_etcd)
        async with EtcdClient([own_etcd.endpoint]) as fresh:
            for _ in range(3):
                last = await fresh.put(b"/k", b"")
            await fresh.endpoints.current.kv.Compact(
                stubs.CompactionRequest(revision=last.revision), timeout=CALL_SECONDS
            )
        items = [item async for item in watch]
        assert items == [WatchReconnected(last.revision), Resync(ResyncReason.COMPACTED, last.revision)]


async def _replace(etcd: EtcdProcess, data_dir: Path, **changes: object) -> EtcdProcess:
    """Another etcd, with an empty store, where this one was."""
    etcd.kill()
    replacement = EtcdProcess(dataclasses.replace(etcd.member, data_dir=data_dir, **changes), etcd._binary)  # type: ignore[arg-type]  # fields by name
    replacement.start()
    await asyncio.to_thread(replacement.wait_ready)
    return replacement


async def test_a_store_that_went_back_makes_a_watch_resync(own_etcd: EtcdProcess, tmp_path: Path) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as client,
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(client.watch(b"/", 2)) as watch,
    ):
        await client.put(b"/k", b"0")
        await client.put(b"/k", b"1")
        assert await _values(watch, 2) == [b"0", b"1"]
        replacement = await _replace(own_etcd, tmp_path)
        try:
            assert [item async for item in watch] == [Resync(ResyncReason.REVISION_WENT_BACK, 1)]
        finally:
            replacement.stop()


async def test_another_cluster_at_the_address_makes_a_watch_resync(own_etcd: EtcdProcess, tmp_path: Path) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as client,
        asyncio.timeout(PATIENCE_SECONDS),
        aclosing(client.watch(b"/", 2)) as watch,
    ):
        await client.put(b"/k", b"0")
        assert await _values(watch, 1) == [b"0"]
        (peer_port,) = free_ports(1)
        peers = f"{own_etcd.member.name}=http://127.0.0.1:{peer_port}"
        replacement = await _replace(own_etcd, tmp_path, peer_port=peer_port, initial_cluster=peers)
        try:
            assert [item async for item in watch] == [Resync(ResyncReason.CLUSTER_CHANGED, 1)]
        finally:
            replacement.stop()


async def test_a_watch_from_a_future_revision_ends_with_a_resync(etcd: EtcdSpace) -> None:
    future = await etcd.client.revision() + 1_000_000
    items = [item async for item in etcd.client.watch(etcd.prefix, future)]
    assert [item.reason for item in items if isinstance(item, Resync)] == [ResyncReason.REVISION_WENT_BACK]


async def test_an_idle_watch_stays_on_its_stream(etcd_process: EtcdProcess, caplog: pytest.LogCaptureFixture) -> None:
    patience = WatchPatience(idle_seconds=0.3, answer_seconds=3.0)
    async with EtcdClient([etcd_process.endpoint], watch_patience=patience) as client:
        start = await client.revision() + 1
        async with aclosing(client.watch(b"/idle/", start)) as watch:
            waiting = asyncio.ensure_future(anext(watch))
            # Twice as long as it takes to call a silent stream dead.
            done, _ = await asyncio.wait({waiting}, timeout=7)
            assert not done
            await client.put(b"/idle/k", b"1")
            item = await waiting
    assert isinstance(item, KeyChanges)
    assert "lost" not in caplog.text


async def test_a_watch_of_a_frozen_etcd_reports_silence_and_continues(
    own_etcd: EtcdProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        EtcdClient([own_etcd.endpoint], watch_patience=_IMPATIENT) as client,
        aclosing(client.watch(b"/", 2)) as watch,
    ):
        await client.put(b"/k", b"0")
        assert await _values(watch, 1) == [b"0"]
        next_item = asyncio.ensure_future(_next_changes(watch))
        async with paused(own_etcd), asyncio.timeout(PATIENCE_SECONDS):
            while "was silent for too long" not in caplog.text:
                await asyncio.sleep(0.02)
        await client.put(b"/k", b"1", timeout_seconds=CALL_SECONDS)
        assert [change.key_value.value for change in (await next_item).changes] == [b"1"]
