"""The client of etcd: keys, transactions, leases, watches, over one set of endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from services.coordinator.etcd import stubs, transactions
from services.coordinator.etcd.calls import (
    Compacted,
    EtcdRefused,
    EtcdUnavailable,
    LeaseExpired,
    read,
    read_from,
    write,
)
from services.coordinator.etcd.endpoints import Endpoints, TlsIdentity
from services.coordinator.etcd.keepalive import KeepAlive
from services.coordinator.etcd.transactions import (
    MAX_TXN_OPS,
    Compare,
    Delete,
    EtcdLease,
    Get,
    KeyValue,
    Listing,
    MemberStatus,
    Put,
    Txn,
    TxnResult,
    key_value,
    prefix_end,
)
from services.coordinator.etcd.watch import EtcdWatch, WatchItem, WatchPatience

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

_PAGE_KEYS = 1_000
_LIST_TRIES = 3


class EtcdClient:
    """One per process, made and closed in its event loop (`async with`).

    Reads are linearizable and go round the members within their deadline; they raise EtcdUnavailable or EtcdRefused.
    Writes are sent exactly once; they raise EtcdUnclear when the outcome is not known (calls.py has the tree).
    `timeout_seconds` of a call, where not given, is the client's.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        tls: TlsIdentity | None = None,
        timeout_seconds: float = 3.0,
        max_pending_renewals: int = 10_000,
        watch_patience: WatchPatience | None = None,
    ) -> None:
        self.endpoints = Endpoints(targets, tls)
        self._timeout_seconds = timeout_seconds
        self._keep_alive = KeepAlive(self.endpoints, max_pending=max_pending_renewals)
        self._watch_patience = watch_patience or WatchPatience()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the keep-alive stream and all channels. Close the iterators of watches before."""
        await self._keep_alive.aclose()
        await self.endpoints.aclose()

    async def get(self, key: bytes, *, timeout_seconds: float | None = None) -> KeyValue | None:
        """The key as it is now, or None."""
        answer = await self._range(stubs.RangeRequest(key=key), timeout_seconds)
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def get_many(self, keys: Iterable[bytes], *, timeout_seconds: float | None = None) -> dict[bytes, KeyValue]:
        """Those of the keys that exist. Read in groups of MAX_TXN_OPS, each at a revision of its own."""
        wanted = list(dict.fromkeys(keys))
        by_key: dict[bytes, KeyValue] = {}
        for start in range(0, len(wanted), MAX_TXN_OPS):
            gets = tuple(Get(key) for key in wanted[start : start + MAX_TXN_OPS])
            result = await self.txn(Txn(then=gets), timeout_seconds=timeout_seconds)
            by_key.update({each.key: each for each in result.key_values})
        return by_key

    async def list(
        self,
        prefix: bytes,
        *,
        page_keys: int = _PAGE_KEYS,
        max_keys: int = 1_000_000,
        timeout_seconds: float | None = None,
    ) -> Listing:
        """All keys under a prefix at one revision, read page by page; the deadline is per page.

        Raises EtcdRefused beyond `max_keys`, EtcdUnavailable if compaction overtakes the listing again and again.
        """
        for _ in range(_LIST_TRIES):
            try:
                return await self._list(prefix, page_keys, max_keys, timeout_seconds)
            except Compacted:
                continue  # its revision was compacted between two pages: begin again at the present one
        raise EtcdUnavailable(f"the listing of {prefix!r} was overtaken by compaction {_LIST_TRIES} times")

    async def count(self, prefix: bytes, *, timeout_seconds: float | None = None) -> int:
        """How many keys there are under a prefix."""
        request = stubs.RangeRequest(key=prefix or b"\x00", range_end=prefix_end(prefix), count_only=True)
        return (await self._range(request, timeout_seconds)).count

    async def revision(self, *, timeout_seconds: float | None = None) -> int:
        """The store's present revision, confirmed by a quorum."""
        answer = await self._range(stubs.RangeRequest(key=b"\x00", count_only=True), timeout_seconds)
        return answer.header.revision

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        lease: int = 0,
        only_if: Sequence[Compare] = (),
        timeout_seconds: float | None = None,
    ) -> TxnResult:
        """Put a key if all conditions hold; `succeeded` tells whether they did. Raises LeaseExpired."""
        txn = Txn(when=tuple(only_if), then=(Put(key, value, lease),))
        return await self.txn(txn, timeout_seconds=timeout_seconds)

    async def delete(
        self, key: bytes, *, only_if: Sequence[Compare] = (), timeout_seconds: float | None = None
    ) -> bool:
        """Delete a key if all conditions hold. Whether something was deleted."""
        result = await self.txn(Txn(when=tuple(only_if), then=(Delete(key),)), timeout_seconds=timeout_seconds)
        return result.succeeded and result.results == (1,)

    async def delete_prefix(self, prefix: bytes, *, timeout_seconds: float | None = None) -> int:
        """Delete all keys under a prefix, in one revision. How many there were."""
        request = stubs.DeleteRangeRequest(key=prefix or b"\x00", range_end=prefix_end(prefix))
        timeout = self._timeout(timeout_seconds)
        answer = await write(self.endpoints, lambda e: e.kv.DeleteRange, request, timeout_seconds=timeout)
        return answer.deleted

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        """Carry out a transaction; tried again only if it is read-only. Raises ValueError when it is too wide."""
        call = read if txn.is_read_only else write
        request = transactions.to_request(txn)
        timeout = self._timeout(timeout_seconds)
        answer = await call(self.endpoints, lambda e: e.kv.Txn, request, timeout_seconds=timeout)
        return transactions.from_response(answer, answer.header.revision)

    async def grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> EtcdLease:
        """A new lease. An unclear one, if it was granted, ends by itself after its TTL."""
        request = stubs.LeaseGrantRequest(TTL=ttl_seconds)
        timeout = self._timeout(timeout_seconds)
        answer = await write(self.endpoints, lambda e: e.lease.LeaseGrant, request, timeout_seconds=timeout)
        return EtcdLease(answer.ID, answer.TTL)

    async def revoke(self, lease: int, *, timeout_seconds: float | None = None) -> bool:
        """End a lease; all its keys vanish in one revision. False if there was no such lease."""
        request = stubs.LeaseRevokeRequest(ID=lease)
        timeout = self._timeout(timeout_seconds)
        try:
            await write(self.endpoints, lambda e: e.lease.LeaseRevoke, request, timeout_seconds=timeout)
        except LeaseExpired:
            return False
        return True

    async def keep_alive(self, lease: int, *, timeout_seconds: float | None = None) -> int:
        """Renew a lease once; its TTL in seconds. Raises LeaseExpired, EtcdUnavailable, EtcdUnclear.

        A sign of life, not a proof of ownership: old releases of etcd may answer for a lease just revoked.
        """
        return await self._keep_alive.renew(lease, timeout_seconds=self._timeout(timeout_seconds))

    async def time_to_live(self, lease: int, *, timeout_seconds: float | None = None) -> int:
        """Seconds left, at least. Raises LeaseExpired."""
        request = stubs.LeaseTimeToLiveRequest(ID=lease)
        timeout = self._timeout(timeout_seconds)
        answer = await read(self.endpoints, lambda e: e.lease.LeaseTimeToLive, request, timeout_seconds=timeout)
        if answer.TTL < 0:
            raise LeaseExpired(f"lease {lease:x} is gone")
        return answer.TTL

    def watch(self, prefix: bytes, start_revision: int, *, previous: bool = False) -> AsyncGenerator[WatchItem, None]:
        """What changes under a prefix from `start_revision` on: a listing's revision + 1. Ends after a Resync.

        Use it in `contextlib.aclosing`, so that its stream ends where the loop does.
        """
        watch = EtcdWatch(self.endpoints, prefix, start_revision, previous=previous, patience=self._watch_patience)
        return watch.items()

    async def status(self, *, timeout_seconds: float | None = None) -> MemberStatus:
        """What the member asked at present says of itself: needs no quorum, so it also tells of a lost leader.

        Raises EtcdUnavailable when it does not answer; the next call then asks the next member.
        """
        endpoint = self.endpoints.current
        answer = await read_from(
            self.endpoints,
            endpoint,
            lambda e: e.maintenance.Status,
            stubs.StatusRequest(),
            timeout_seconds=self._timeout(timeout_seconds),
        )
        header = answer.header
        return MemberStatus(
            endpoint=endpoint.target,
            cluster_id=header.cluster_id,
            member_id=header.member_id,
            version=answer.version,
            revision=header.revision,
            raft_term=answer.raftTerm,
            has_leader=answer.leader != 0,
            is_leader=answer.leader == header.member_id,
        )

    async def alarms(self, *, timeout_seconds: float | None = None) -> frozenset[str]:
        """The alarms that stand, such as NOSPACE: the cluster's, so any member that has a leader can tell."""
        timeout = self._timeout(timeout_seconds)
        request = stubs.StatusRequest()
        answer = await read(self.endpoints, lambda e: e.maintenance.Status, request, timeout_seconds=timeout)
        return frozenset(name for error in answer.errors if (name := _alarm(error)))

    async def _list(self, prefix: bytes, page_keys: int, max_keys: int, timeout_seconds: float | None) -> Listing:
        key_values: list[KeyValue] = []
        start, end, revision = prefix or b"\x00", prefix_end(prefix), 0
        while True:
            page = stubs.RangeRequest(key=start, range_end=end, limit=page_keys, revision=revision)
            answer = await self._range(page, timeout_seconds)
            revision = revision or answer.header.revision
            key_values.extend(key_value(each) for each in answer.kvs)
            if len(key_values) > max_keys:
                raise EtcdRefused(f"more than {max_keys} keys under {prefix!r}")
            if not answer.more:
                return Listing(revision, tuple(key_values))
            start = key_values[-1].key + b"\x00"

    async def _range(self, request: stubs.RangeRequest, timeout_seconds: float | None) -> stubs.RangeResponse:
        timeout = self._timeout(timeout_seconds)
        return await read(self.endpoints, lambda e: e.kv.Range, request, timeout_seconds=timeout)

    def _timeout(self, timeout_seconds: float | None) -> float:
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds


def _alarm(error: str) -> str:
    """The alarm in a line of a member's status: `memberID:11 alarm:NOSPACE`. Other lines are no alarms."""
    return error.partition("alarm:")[2].strip()
