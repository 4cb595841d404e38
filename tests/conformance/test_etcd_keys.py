"""The facts about etcd's revisions and transactions that epochs stand on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from services.coordinator.etcd import stubs, transactions
from services.coordinator.etcd.calls import MAX_REQUEST_BYTES, EtcdRefused, EtcdUnavailable, LeaseExpired
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import (
    MAX_TXN_OPS,
    Delete,
    Get,
    Put,
    Txn,
    absent,
    created_at,
    modified_at,
    none_under,
    present,
    value_is,
)
from services.coordinator.etcd.watch import KeyChange, KeyChanges
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

if TYPE_CHECKING:
    from devstack.etcd import EtcdProcess
    from tests.support.fix_etcd import EtcdSpace


def _claim(key: bytes, lease: int = 0) -> Txn:
    return Txn(when=(absent(key),), then=(Put(key, b"claimed", lease),), otherwise=(Get(key),))


async def test_a_claims_revision_is_the_create_revision_of_its_key(etcd: EtcdSpace) -> None:
    key = etcd.key("claim")
    result = await etcd.client.txn(_claim(key))
    held = await etcd.client.get(key)
    assert result.succeeded
    assert held is not None
    assert held.create_revision == held.mod_revision == result.revision


async def test_nested_claims_fail_separately_and_share_a_revision(etcd: EtcdSpace) -> None:
    taken, free, other = etcd.key("taken"), etcd.key("free"), etcd.key("other")
    first = await etcd.client.txn(_claim(taken))
    result = await etcd.client.txn(Txn(then=(_claim(taken), _claim(free), _claim(other))))
    assert [each.succeeded for each in result.nested] == [False, True, True]
    (holder,) = result.nested[0].key_values
    assert holder.create_revision == first.revision < result.revision
    response = await etcd.client.get_many([taken, free, other])
    assert response[free].create_revision == response[other].create_revision == result.revision
    assert [each.revision for each in result.nested] == [result.revision] * 3


async def test_nested_transaction_answers_have_no_own_revision(etcd: EtcdSpace) -> None:
    nested = stubs.TxnRequest(success=[stubs.RequestOp(request_put=stubs.PutRequest(key=etcd.key("k"), value=b""))])
    request = stubs.TxnRequest(success=[stubs.RequestOp(request_txn=nested)])
    answer = await etcd.client.endpoints.current.kv.Txn(request, timeout=CALL_SECONDS)
    assert answer.header.revision > 0
    assert answer.responses[0].response_txn.header.revision == 0


async def test_putting_a_key_again_keeps_its_create_revision(etcd: EtcdSpace) -> None:
    key = etcd.key("again")
    first = await etcd.client.put(key, b"1")
    second = await etcd.client.put(key, b"2")
    held = await etcd.client.get(key)
    assert held is not None
    assert (held.create_revision, held.mod_revision, held.version) == (first.revision, second.revision, 2)


async def test_a_recreated_key_has_a_higher_create_revision(etcd: EtcdSpace) -> None:
    key = etcd.key("reborn")
    first = await etcd.client.put(key, b"1")
    assert await etcd.client.delete(key)
    second = await etcd.client.put(key, b"1")
    held = await etcd.client.get(key)
    assert held is not None
    assert held.create_revision == second.revision > first.revision


async def test_a_failed_claims_revision_is_above_the_holders_epoch(etcd: EtcdSpace) -> None:
    key = etcd.key("claim")
    won = await etcd.client.txn(_claim(key))
    await etcd.client.put(etcd.key("elsewhere"), b"")
    lost = await etcd.client.txn(_claim(key))
    assert not lost.succeeded
    assert lost.key_values[0].create_revision == won.revision < lost.revision


async def test_each_condition_holds_and_fails_where_it_should(etcd: EtcdSpace) -> None:
    key, lease = etcd.key("compared"), await etcd.client.grant(60)
    first = await etcd.client.put(key, b"1")
    second = await etcd.client.put(key, b"2", lease=lease.id)
    holds = (
        present(key),
        created_at(key, first.revision),
        modified_at(key, second.revision),
        value_is(key, b"2"),
        absent(etcd.key("nothing")),
    )
    fails = (
        absent(key),
        created_at(key, second.revision),
        modified_at(key, first.revision),
        value_is(key, b"1"),
        present(etcd.key("nothing")),
        value_is(etcd.key("nothing"), b""),
    )
    then = (Put(etcd.key("held"), b""),)
    assert (await etcd.client.txn(Txn(when=holds, then=then))).succeeded
    for condition in fails:
        assert not (await etcd.client.txn(Txn(when=(condition,), then=then))).succeeded


async def test_a_key_is_deleted_only_at_the_revision_that_was_read(etcd: EtcdSpace) -> None:
    key = etcd.key("seen")
    seen = await etcd.client.put(key, b"1")
    await etcd.client.delete(key)
    await etcd.client.put(key, b"2")
    assert not await etcd.client.delete(key, only_if=[created_at(key, seen.revision)])
    assert await etcd.client.get(key) is not None
    assert await etcd.client.delete(key)
    assert not await etcd.client.delete(key)


async def test_a_result_has_one_entry_per_operation(etcd: EtcdSpace) -> None:
    await etcd.client.put(etcd.key("old/1"), b"")
    await etcd.client.put(etcd.key("old/2"), b"")
    new, old = etcd.key("new"), etcd.key("old/")
    result = await etcd.client.txn(
        Txn(then=(Put(new, b"n"), Delete(old, prefix=True), Get(old, prefix=True), Get(new)))
    )
    assert result.results[:3] == (None, 2, ())
    assert [each.value for each in result.key_values] == [b"n"]


async def test_a_put_under_a_dead_lease_refuses_the_whole_request(etcd: EtcdSpace) -> None:
    living, dead = await etcd.client.grant(60), await etcd.client.grant(60)
    await etcd.client.revoke(dead.id)
    batch = Txn(then=(_claim(etcd.key("a"), living.id), _claim(etcd.key("b"), dead.id)))
    with pytest.raises(LeaseExpired):
        await etcd.client.txn(batch)
    assert (await etcd.client.list(etcd.prefix)).key_values == ()


async def test_a_compared_session_key_lets_other_claims_succeed(etcd: EtcdSpace) -> None:
    living, dead = await etcd.client.grant(60), await etcd.client.grant(60)
    await etcd.client.put(etcd.key("session/living"), b"", lease=living.id)
    await etcd.client.put(etcd.key("session/dead"), b"", lease=dead.id)
    await etcd.client.revoke(dead.id)

    def guarded(task: str, session: str, lease: int) -> Txn:
        when = (absent(etcd.key(task)), present(etcd.key(session)))
        return Txn(when=when, then=(Put(etcd.key(task), b"", lease),))

    batch = Txn(then=(guarded("a", "session/living", living.id), guarded("b", "session/dead", dead.id)))
    result = await etcd.client.txn(batch)
    assert [each.succeeded for each in result.nested] == [True, False]


async def test_one_key_claimed_twice_refuses_the_whole_request(etcd: EtcdSpace) -> None:
    with pytest.raises(EtcdRefused, match="duplicate key"):
        await etcd.client.txn(Txn(then=(_claim(etcd.key("a")), _claim(etcd.key("b")), _claim(etcd.key("a")))))
    assert (await etcd.client.list(etcd.prefix)).key_values == ()


async def test_our_bound_on_the_width_of_a_transaction_is_etcds(etcd: EtcdSpace) -> None:
    def wide(count: int) -> Txn:
        keys = [etcd.key(f"wide/{number}") for number in range(count)]
        return Txn(then=tuple(Txn(when=(absent(key), absent(key), absent(key)), then=(Put(key, b""),)) for key in keys))

    assert (await etcd.client.txn(wide(MAX_TXN_OPS - 3))).succeeded
    with pytest.raises(ValueError, match="129 operations wide"):
        await etcd.client.txn(wide(MAX_TXN_OPS - 2))
    with pytest.raises(grpc.aio.AioRpcError, match="too many operations"):
        await etcd.client.endpoints.current.kv.Txn(transactions._request(wide(MAX_TXN_OPS - 2)), timeout=CALL_SECONDS)


async def test_a_listing_in_pages_shows_one_revision(etcd: EtcdSpace) -> None:
    keys = [etcd.key(f"page/{number:03}") for number in range(25)]
    await etcd.client.txn(Txn(then=tuple(Put(key, b"") for key in keys)))
    await etcd.client.put(etcd.key("page0"), b"outside of the prefix")
    pages = 0
    read_page = etcd.client._range

    async def disturbed(*arguments: object) -> object:
        nonlocal pages
        pages += 1
        answer = await read_page(*arguments)  # type: ignore[arg-type]  # passed on as it came
        await etcd.client.delete(keys[-pages])
        return answer

    etcd.client._range = disturbed  # type: ignore[method-assign,assignment]  # the moment between two pages
    listing = await etcd.client.list(etcd.key("page/"), page_keys=10)
    assert pages == 3
    assert [each.key for each in listing.key_values] == keys


async def test_a_listing_overtaken_by_compaction_begins_again(own_etcd: EtcdProcess) -> None:
    async with EtcdClient([own_etcd.endpoint]) as client:
        for number in range(4):
            await client.put(b"/k/%d" % number, b"")
        read_page, compactions = client._range, iter([True])

        async def compacting(*arguments: object) -> object:
            answer = await read_page(*arguments)  # type: ignore[arg-type]  # passed on as it came
            if next(compactions, False):
                last = await client.put(b"/k/new", b"")
                await client.endpoints.current.kv.Compact(
                    stubs.CompactionRequest(revision=last.revision), timeout=CALL_SECONDS
                )
            return answer

        client._range = compacting  # type: ignore[method-assign,assignment]  # the moment between two pages
        listing = await client.list(b"/k/", page_keys=2)
        assert [each.key for each in listing.key_values] == [b"/k/0", b"/k/1", b"/k/2", b"/k/3", b"/k/new"]


async def test_a_listing_has_a_bound(etcd: EtcdSpace) -> None:
    await etcd.client.txn(Txn(then=tuple(Put(etcd.key(str(number)), b"") for number in range(5))))
    with pytest.raises(EtcdRefused, match="more than 4 keys"):
        await etcd.client.list(etcd.prefix, max_keys=4)


async def test_many_keys_are_read_back_in_groups(etcd: EtcdSpace) -> None:
    keys = [etcd.key(f"{number:04}") for number in range(MAX_TXN_OPS + 10)]
    for start in range(0, len(keys), 2 * 40):
        await etcd.client.txn(Txn(then=tuple(Put(key, b"") for key in keys[start : start + 80 : 2])))
    assert sorted(await etcd.client.get_many([*keys, keys[0]])) == keys[::2]


@pytest.mark.faults
async def test_reads_that_their_callers_give_up_harm_no_etcd(own_etcd: EtcdProcess) -> None:
    """A transaction that only reads would end this release of etcd within a few rounds."""
    keys = [b"/k/%d" % number for number in range(100)]
    async with EtcdClient([own_etcd.endpoint]) as client:
        for key in keys:
            await client.put(key, bytes(1000))
        for round_number in range(40):
            reads = [asyncio.create_task(client.get_many(keys)) for _ in range(8)]
            await asyncio.sleep(0.0002 * round_number)  # the moment to hit is not known: each round tries another one
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            assert own_etcd.exit_code is None
        assert len(await client.get_many(keys)) == len(keys)


async def test_a_request_over_etcds_size_is_refused(etcd: EtcdSpace) -> None:
    await etcd.client.put(etcd.key("large"), bytes(MAX_REQUEST_BYTES - 200))
    with pytest.raises(EtcdRefused, match="etcd's limit of 1572864"):
        await etcd.client.put(etcd.key("large"), bytes(MAX_REQUEST_BYTES))


async def test_the_status_names_the_member_and_its_leader(etcd: EtcdSpace) -> None:
    result = await etcd.client.put(etcd.key("k"), b"")
    status = await etcd.client.status()
    assert result.revision <= status.revision <= await etcd.client.revision()
    assert status.has_leader
    assert status.is_leader
    assert status.cluster_id != 0
    assert status.endpoint == etcd.endpoint
    assert int(status.version.split(".")[0]) == 3


@pytest.mark.faults
async def test_the_status_of_a_member_without_a_leader_has_none(etcd_cluster: list[EtcdProcess]) -> None:
    survivor = etcd_cluster[0]
    async with EtcdClient([survivor.endpoint]) as client:
        for member in etcd_cluster[1:]:
            member.kill()
        with pytest.raises(EtcdUnavailable):
            await client.revision()
        # The member notices by its own clock, after an election timeout.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await client.status()).has_leader:
                await asyncio.sleep(0.05)


async def test_a_client_sees_the_keys_of_its_namespace_only(etcd: EtcdSpace) -> None:
    await etcd.client.put(etcd.key("k"), b"outside")
    async with EtcdClient([etcd.endpoint], namespace=etcd.key("inside/")) as client:
        put = await client.put(b"k", b"1", only_if=[absent(b"k"), none_under(b"")])
        assert put.succeeded
        refused = await client.txn(
            Txn(when=(absent(b"k"),), then=(Put(b"k", b"2"),), otherwise=(Get(b"", prefix=True),))
        )
        assert [(each.key, each.value) for each in refused.key_values] == [(b"k", b"1")]
        nested = await client.txn(Txn(then=(Txn(when=(value_is(b"k", b"1"),), then=(Put(b"k/2", b"2"), Get(b"k"))),)))
        assert [each.key for each in nested.nested[0].key_values] == [b"k"]
        assert [each.key for each in (await client.list(b"", page_keys=1)).key_values] == [b"k", b"k/2"]
        assert await client.count(b"k/") == 1
        assert list(await client.get_many([b"k", b"absent"])) == [b"k"]
        async with aclosing(client.watch(b"k", put.revision, previous=True)) as watch:
            assert await client.delete(b"k")
            assert await client.delete(b"k/2")
            changes: list[KeyChange] = []
            while len(changes) < 4:
                item = await anext(watch)
                assert isinstance(item, KeyChanges)
                changes += item.changes
    assert [(each.key_value.key, each.deleted) for each in changes] == [
        (b"k", False), (b"k/2", False), (b"k", True), (b"k/2", True)
    ]  # fmt: skip
    assert changes[2].previous is not None
    assert changes[2].previous.key == b"k"
    assert await etcd.client.delete(etcd.key("k"))
