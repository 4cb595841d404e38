"""What etcd's answers are turned into: plain values without protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.runtime.etcd import stubs


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as etcd holds it. `lease` is 0 for a key without one.

    `create_revision` stays when the key is put again; `mod_revision` and `version` move.
    """

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int
    version: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The keys under a prefix at one `revision`, sorted by key. A watch goes on from `revision + 1`."""

    revision: int
    key_values: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease. `ttl_seconds` is what etcd granted, which may be more than was asked for."""

    id: int
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """How one member sees the cluster; told by that member alone, without a quorum."""

    endpoint: str
    cluster_id: int
    member_id: int
    version: str
    revision: int
    raft_term: int
    has_leader: bool
    is_leader: bool


def key_value(message: stubs.KeyValue) -> KeyValue:
    """The neutral form of etcd's KeyValue."""
    return KeyValue(
        message.key, message.value, message.create_revision, message.mod_revision, message.lease, message.version
    )


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`: etcd's `range_end`. The empty prefix means all keys."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        # etcd's way to say "to the end"; there is no key after a row of 0xff.
        return b"\x00"
    return kept[:-1] + bytes([kept[-1] + 1])
