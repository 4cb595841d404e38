"""The client of etcd: keys, transactions, leases and watches, over one set of endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Self

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
    Compare,
    Delete,
    EtcdLease,
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

_PAGE_KEYS = 1_000
_LIST_TRIES = 3
_READS_AT_ONCE = 64


class EtcdClient:
    """One per process, made and closed in its event loop (`async with`).

    Reads are linearizable and go round the members within their deadline; they raise EtcdUnavailable or EtcdRefused.
    Writes are sent exactly once; they raise EtcdUnclear when the outcome is not known (calls.py has the tree).
    `timeout_seconds` of a call, where not given, is the client's. `namespace` begins every key in etcd: the client adds
    it to the keys that it is given, and takes it from those that it returns.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        namespace: bytes = b"",
        tls: TlsIdentity | None = None,
        timeout_seconds: float = 3.0,
        max_pending_renewals: int = 10_000,
        watch_patience: WatchPatience | None = None,
    ) -> None:
        self.endpoints = Endpoints(targets, tls)
        self.namespace = namespace
        self._timeout_seconds = timeout_seconds
        self._keep_alive = KeepAlive(self.endpoints, max_pending=max_pending_renewals)
        self._watch_patience = watch_patience or WatchPatience()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the keep-alive stream and all channels. Close the iterators of watches before."""
        await self._keep_alive.aclose()
        await self.endpoints.aclose()

    async def get(self, key: bytes, *, timeout_seconds: float | None = None) -> KeyValue | None:
        """Returns the key, or None."""
        return (await self.get_with_revision(key, timeout_seconds=timeout_seconds))[0]

    async def get_with_revision(
        self, key: bytes, *, timeout_seconds: float | None = None
    ) -> tuple[KeyValue | None, int]:
        """Returns the key, or None, and the store's revision at which it was read."""
        response = await self._range(stubs.RangeRequest(key=self.namespace + key), timeout_seconds)
        value = key_value(response.kvs[0], self.namespace) if response.kvs else None
        return value, response.header.revision

    async def get_many(self, keys: Iterable[bytes], *, timeout_seconds: float | None = None) -> dict[bytes, KeyValue]:
        """Returns those of the keys that exist, each read at its own revision, _READS_AT_ONCE at a time."""
        wanted = list(dict.fromkeys(keys))
        by_key: dict[bytes, KeyValue] = {}
        for start in range(0, len(wanted), _READS_AT_ONCE):
            group = wanted[start : start + _READS_AT_ONCE]
            key_values = await asyncio.gather(*(self.get(key, timeout_seconds=timeout_seconds) for key in group))
            by_key.update({each.key: each for each in key_values if each is not None})
        return by_key

    async def list(
        self,
        prefix: bytes,
        *,
        page_keys: int = _PAGE_KEYS,
        max_keys: int = 1_000_000,
        timeout_seconds: float | None = None,
    ) -> Listing:
        """Returns all keys under a prefix at one revision, read in pages; the deadline is per page.

        Raises EtcdRefused beyond `max_keys`, and EtcdUnavailable if compaction repeatedly removes the revision
        meanwhile.
        """
        for _ in range(_LIST_TRIES):
            try:
                return await self._list(prefix, page_keys, max_keys, timeout_seconds)
            except Compacted:
                continue  # the revision was compacted between two pages: begin again at the present one
        raise EtcdUnavailable(f"the listing of {prefix!r} was overtaken by compaction {_LIST_TRIES} times")

    async def count(self, prefix: bytes, *, timeout_seconds: float | None = None) -> int:
        """Returns the number of keys under a prefix."""
        start, end = self._under(prefix)
        request = stubs.RangeRequest(key=start, range_end=end, count_only=True)
        return (await self._range(request, timeout_seconds)).count

    async def revision(self, *, timeout_seconds: float | None = None) -> int:
        """Returns the store's present revision, confirmed by a quorum."""
        response = await self._range(stubs.RangeRequest(key=b"\x00", count_only=True), timeout_seconds)
        return response.header.revision

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        lease: int = 0,
        only_if: Sequence[Compare] = (),
        timeout_seconds: float | None = None,
    ) -> TxnResult:
        """Puts a key if all conditions hold; `succeeded` says whether they did. Raises LeaseExpired."""
        txn = Txn(when=tuple(only_if), then=(Put(key, value, lease),))
        return await self.txn(txn, timeout_seconds=timeout_seconds)

    async def delete(
        self, key: bytes, *, only_if: Sequence[Compare] = (), timeout_seconds: float | None = None
    ) -> bool:
        """Deletes a key if all conditions hold. Returns whether a key was deleted."""
        result = await self.txn(Txn(when=tuple(only_if), then=(Delete(key),)), timeout_seconds=timeout_seconds)
        return result.succeeded and result.results == (1,)

    async def txn(self, txn: Txn, *, timeout_seconds: float | None = None) -> TxnResult:
        """Runs a transaction, once. Raises ValueError when it is too wide, or only reads."""
        request = transactions.to_request(txn, self.namespace)
        timeout = self._timeout(timeout_seconds)
        response = await write(self.endpoints, lambda e: e.kv.Txn, request, timeout_seconds=timeout)
        return transactions.from_response(response, response.header.revision, self.namespace)

    async def grant(self, ttl_seconds: int, *, timeout_seconds: float | None = None) -> EtcdLease:
        """Grants a new lease. A lease that was granted with an unclear answer ends after its TTL."""
        request = stubs.LeaseGrantRequest(TTL=ttl_seconds)
        timeout = self._timeout(timeout_seconds)
        response = await write(self.endpoints, lambda e: e.lease.LeaseGrant, request, timeout_seconds=timeout)
        return EtcdLease(response.ID, response.TTL)

    async def revoke(self, lease: int, *, timeout_seconds: float | None = None) -> bool:
        """Revokes a lease, which deletes all its keys in one revision. Returns False if the lease does not exist."""
        request = stubs.LeaseRevokeRequest(ID=lease)
        timeout = self._timeout(timeout_seconds)
        try:
            await write(self.endpoints, lambda e: e.lease.LeaseRevoke, request, timeout_seconds=timeout)
        except LeaseExpired:
            return False
        return True

    async def keep_alive(self, lease: int, *, timeout_seconds: float | None = None) -> int:
        """Renews a lease once and returns its TTL in seconds. Raises LeaseExpired, EtcdUnavailable and EtcdUnclear.

        An answer does not prove ownership: old releases of etcd may answer for a lease that was just revoked.
        """
        return await self._keep_alive.renew(lease, timeout_seconds=self._timeout(timeout_seconds))

    async def time_to_live(self, lease: int, *, timeout_seconds: float | None = None) -> int:
        """Returns the minimum of seconds that the lease has left. Raises LeaseExpired."""
        request = stubs.LeaseTimeToLiveRequest(ID=lease)
        timeout = self._timeout(timeout_seconds)
        response = await read(self.endpoints, lambda e: e.lease.LeaseTimeToLive, request, timeout_seconds=timeout)
        if response.TTL < 0:
            raise LeaseExpired(f"lease {lease:x} is gone")
        return response.TTL

    def watch(self, prefix: bytes, start_revision: int, *, previous: bool = False) -> AsyncGenerator[WatchItem, None]:
        """Yields the changes under a prefix from `start_revision` on: a listing's revision + 1. Ends after a Resync.

        Use it in `contextlib.aclosing`, so that its stream ends with the loop.
        """
        watch = EtcdWatch(
            self.endpoints,
            prefix,
            start_revision,
            namespace=self.namespace,
            previous=previous,
            patience=self._watch_patience,
        )
        return watch.items()

    async def status(self, *, timeout_seconds: float | None = None) -> MemberStatus:
        """Returns the present member's own status. It needs no quorum, so it also shows a lost leader.

        Raises EtcdUnavailable when the member does not answer; the next call then goes to the next member.
        """
        endpoint = self.endpoints.current
        response = await read_from(
            self.endpoints,
            endpoint,
            lambda e: e.maintenance.Status,
            stubs.StatusRequest(),
            timeout_seconds=self._timeout(timeout_seconds),
        )
        header = response.header
        return MemberStatus(
            endpoint=endpoint.target,
            cluster_id=header.cluster_id,
            member_id=header.member_id,
            version=response.version,
            revision=header.revision,
            raft_term=response.raftTerm,
            has_leader=response.leader != 0,
            is_leader=response.leader == header.member_id,
        )

    async def alarms(self, *, timeout_seconds: float | None = None) -> frozenset[str]:
        """Returns the present alarms of the cluster, such as NOSPACE, as any member with a leader knows them."""
        timeout = self._timeout(timeout_seconds)
        request = stubs.StatusRequest()
        response = await read(self.endpoints, lambda e: e.maintenance.Status, request, timeout_seconds=timeout)
        return frozenset(name for error in response.errors if (name := _alarm(error)))

    async def _list(self, prefix: bytes, page_keys: int, max_keys: int, timeout_seconds: float | None) -> Listing:
        key_values: list[KeyValue] = []
        (start, end), revision = self._under(prefix), 0
        while True:
            page = stubs.RangeRequest(key=start, range_end=end, limit=page_keys, revision=revision)
            response = await self._range(page, timeout_seconds)
            revision = revision or response.header.revision
            key_values.extend(key_value(each, self.namespace) for each in response.kvs)
            if len(key_values) > max_keys:
                raise EtcdRefused(f"more than {max_keys} keys under {prefix!r}")
            if not response.more:
                return Listing(revision, tuple(key_values))
            start = response.kvs[-1].key + b"\x00"

    def _under(self, prefix: bytes) -> tuple[bytes, bytes]:
        """Returns the first key under a prefix in etcd, and the first one after it."""
        return self.namespace + prefix or b"\x00", prefix_end(self.namespace + prefix)

    async def _range(self, request: stubs.RangeRequest, timeout_seconds: float | None) -> stubs.RangeResponse:
        timeout = self._timeout(timeout_seconds)
        return await read(self.endpoints, lambda e: e.kv.Range, request, timeout_seconds=timeout)

    def _timeout(self, timeout_seconds: float | None) -> float:
        return self._timeout_seconds if timeout_seconds is None else timeout_seconds


def _alarm(error: str) -> str:
    """Returns the alarm in a line of a member's status, `memberID:11 alarm:NOSPACE`, or "" for another line."""
    return error.partition("alarm:")[2].strip()
