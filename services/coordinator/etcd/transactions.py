"""Transactions as values: what must hold, what is done then, what is done otherwise.

    claim = Txn(
        when=(absent(claim_key), present(session_key), value_is(generation_key, b"3")),
        then=(Put(claim_key, body, lease=lease_id),),
        otherwise=(Get(claim_key),),
    )

A Txn is itself an operation: many claims go as nested transactions of one request, and one refusal does not fail the
rest. All writes of a request, nested ones too, share one revision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from services.coordinator.etcd import stubs

# etcd's answers as plain values without protobuf.


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd holds it. `lease` is 0 for a key without one.

    `create_revision` stays when the key is put again; `mod_revision` and `version` change.
    """

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int
    version: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The keys under a prefix at one `revision`, sorted by key. A watch continues from `revision + 1`."""

    revision: int
    key_values: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class EtcdLease:
    """A granted lease. `ttl_seconds` is the TTL that etcd granted, which may exceed the requested one."""

    id: int
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The cluster as one member sees it, without a quorum."""

    endpoint: str
    cluster_id: int
    member_id: int
    version: str
    revision: int
    raft_term: int
    has_leader: bool
    is_leader: bool


def key_value(message: stubs.KeyValue, namespace: bytes = b"") -> KeyValue:
    """Returns etcd's KeyValue without protobuf, its key without the client's namespace."""
    return KeyValue(
        message.key.removeprefix(namespace),
        message.value,
        message.create_revision,
        message.mod_revision,
        message.lease,
        message.version,
    )


def prefix_end(prefix: bytes) -> bytes:
    """Returns the first key after all keys with this prefix: etcd's `range_end`. The empty prefix means all keys."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        # etcd's notation for "to the end"; no key follows a sequence of 0xff.
        return b"\x00"
    return kept[:-1] + bytes([kept[-1] + 1])


# etcd's default of --max-txn-ops. A nested transaction may use what its parents' widest list leaves of it.
MAX_TXN_OPS = 128


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition on one key. The functions below make it."""

    message: stubs.Compare = field(repr=False)


@dataclass(frozen=True, slots=True)
class Put:
    """Puts a key; with a `lease`, the key is deleted when the lease ends."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Get:
    """Reads one key, or with `prefix` all keys that begin with it (not in pages: only for few keys)."""

    key: bytes
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes one key, or with `prefix` all keys that begin with it."""

    key: bytes
    prefix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """If all of `when` holds, does `then`, else `otherwise`, atomically.

    etcd refuses the whole request when a key could be put twice in it, nested transactions included.
    """

    when: tuple[Compare, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()

    @property
    def width(self) -> int:
        """Returns the share of MAX_TXN_OPS that it needs: its longest list plus the widest nested transaction."""
        nested = [operation.width for operation in (*self.then, *self.otherwise) if isinstance(operation, Txn)]
        return max(len(self.when), len(self.then), len(self.otherwise)) + max(nested, default=0)

    @property
    def is_read_only(self) -> bool:
        """Whether neither branch changes a key."""
        return all(
            operation.is_read_only if isinstance(operation, Txn) else isinstance(operation, Get)
            for operation in (*self.then, *self.otherwise)
        )


Operation: TypeAlias = Put | Get | Delete | Txn


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The result of a transaction. `results` has one entry per operation of the branch taken, in order:
    key-values for a Get, the number of deleted keys for a Delete, None for a Put, a TxnResult for a Txn.

    `revision` is the store's after the request. It is the `create_revision` of a key only if this very transaction
    put that key: after a refusal it is *higher* than the holder's, and must never be taken for it.
    """

    succeeded: bool
    revision: int
    results: tuple[tuple[KeyValue, ...] | int | TxnResult | None, ...]

    @property
    def key_values(self) -> tuple[KeyValue, ...]:
        """Returns the results of the Gets of the branch taken, in order, without nested transactions."""
        return tuple(key_value for result in self.results if isinstance(result, tuple) for key_value in result)

    @property
    def nested(self) -> tuple[TxnResult, ...]:
        """Returns the results of the nested transactions of the branch taken, in order."""
        return tuple(result for result in self.results if isinstance(result, TxnResult))


def absent(key: bytes) -> Compare:
    """The key does not exist."""
    return created_at(key, 0)


def none_under(prefix: bytes) -> Compare:
    """No key begins with the prefix."""
    return _compare(
        stubs.Compare(key=prefix, range_end=prefix_end(prefix), target=stubs.Compare.CREATE, create_revision=0)
    )


def present(key: bytes) -> Compare:
    """The key exists."""
    return _compare(
        stubs.Compare(key=key, target=stubs.Compare.CREATE, create_revision=0, result=stubs.Compare.GREATER)
    )


def created_at(key: bytes, revision: int) -> Compare:
    """The key exists and was created at this revision: it is the same key, even if it was put again since."""
    return _compare(stubs.Compare(key=key, target=stubs.Compare.CREATE, create_revision=revision))


def under_lease(key: bytes, lease: int) -> Compare:
    """The key exists under this lease. Lease ids contain the time, so another life of etcd gives other ids."""
    return _compare(stubs.Compare(key=key, target=stubs.Compare.LEASE, lease=lease))


def modified_at(key: bytes, revision: int) -> Compare:
    """The key was last put at this revision: it is unchanged since."""
    return _compare(stubs.Compare(key=key, target=stubs.Compare.MOD, mod_revision=revision))


def value_is(key: bytes, value: bytes) -> Compare:
    """The key exists and has this value."""
    return _compare(stubs.Compare(key=key, target=stubs.Compare.VALUE, value=value))


def _compare(message: stubs.Compare) -> Compare:
    return Compare(message)  # result's default is EQUAL


def to_request(txn: Txn, namespace: bytes = b"") -> stubs.TxnRequest:
    """Returns the message of a transaction. Raises ValueError when it is too wide for etcd, or only reads.

    `namespace` is added to each of its keys.

    etcd before 3.5.7 panics when the caller of a transaction that only reads goes away, or its deadline passes, at the
    wrong moment (etcd's issues 14110 and 14891).
    """
    if txn.is_read_only:
        raise ValueError("a transaction that only reads can crash etcd: read the keys with get or get_many")
    if txn.width > MAX_TXN_OPS:
        raise ValueError(f"a transaction is {txn.width} operations wide; etcd's limit is {MAX_TXN_OPS}")
    return _request(txn, namespace)


def _request(txn: Txn, namespace: bytes = b"") -> stubs.TxnRequest:
    return stubs.TxnRequest(
        compare=[_in_namespace(compare.message, namespace) for compare in txn.when],
        success=[_operation(operation, namespace) for operation in txn.then],
        failure=[_operation(operation, namespace) for operation in txn.otherwise],
    )


def _in_namespace(compare: stubs.Compare, namespace: bytes) -> stubs.Compare:
    moved = stubs.Compare()
    moved.CopyFrom(compare)
    moved.key = namespace + compare.key
    if compare.range_end:
        moved.range_end = prefix_end(moved.key)
    return moved


def _operation(operation: Operation, namespace: bytes) -> stubs.RequestOp:
    match operation:
        case Put(key, value, lease):
            return stubs.RequestOp(request_put=stubs.PutRequest(key=namespace + key, value=value, lease=lease))
        case Get(name, prefix):
            key = namespace + name
            return stubs.RequestOp(request_range=stubs.RangeRequest(key=key, range_end=_end(key, prefix)))
        case Delete(name, prefix):
            key = namespace + name
            return stubs.RequestOp(request_delete_range=stubs.DeleteRangeRequest(key=key, range_end=_end(key, prefix)))
        case Txn():
            return stubs.RequestOp(request_txn=_request(operation, namespace))


def _end(key: bytes, prefix: bool) -> bytes:
    return prefix_end(key) if prefix else b""


def from_response(response: stubs.TxnResponse, revision: int, namespace: bytes = b"") -> TxnResult:
    """Returns the result of a transaction. `revision` comes from the outer header: nested answers have none."""
    results = tuple(_result(each, revision, namespace) for each in response.responses)
    return TxnResult(response.succeeded, revision, results)


def _result(
    response: stubs.ResponseOp, revision: int, namespace: bytes
) -> tuple[KeyValue, ...] | int | TxnResult | None:
    match response.WhichOneof("response"):
        case "response_range":
            return tuple(key_value(each, namespace) for each in response.response_range.kvs)
        case "response_delete_range":
            return response.response_delete_range.deleted
        case "response_txn":
            return from_response(response.response_txn, revision, namespace)
        case _:
            return None
