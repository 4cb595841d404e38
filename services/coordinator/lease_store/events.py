"""Watches the keys for the changes of other processes. Watches are hints: duties that list the keys make sure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.watch import KeyChange, KeyChanges, Resync, ResyncReason, WatchReconnected
from services.coordinator.lease_store.named_leases import NamedLease, read_lease, tenant_prefix
from services.coordinator.lease_store.records import (
    CLAIMS,
    DRAINS,
    GENERATION_KEY,
    SESSIONS,
    HeldClaim,
    HeldSession,
    read_claim,
    read_session,
)
from services.coordinator.lease_store.refusals import translated_errors
from services.coordinator.lease_store.session_keys import DrainMark, read_drain
from tenure.runtime.failpoints import failpoint_enabled

# Changes of named leases from a revision on, without gaps.


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """A resource was acquired, or (`held` False) its lease ended. `revision` is etcd's."""

    revision: int
    lease: NamedLease
    held: bool


async def watch_leases(
    etcd: EtcdClient, tenant: str, prefix: str, start_revision: int
) -> AsyncGenerator[list[LeaseChange], None]:
    """Yields all changes of one or more revisions at once. Ends when history is missing: list and watch again then.

    Use it in `aclosing`. A broken connection is replaced.
    """
    with translated_errors():
        watch = etcd.watch(tenant_prefix(tenant) + prefix.encode(), start_revision, previous=True)
        async with aclosing(watch) as items:
            async for item in items:
                match item:
                    case KeyChanges():
                        changes = _read(item)
                        if changes is None:
                            return
                        yield changes
                    case WatchReconnected():
                        continue
                    case Resync():
                        return


def _read(item: KeyChanges) -> list[LeaseChange] | None:
    """Returns the changes in order, or None when history is missing.

    A transfer deletes and puts a key in one revision, and becomes one change.
    """
    changes: dict[tuple[int, str], LeaseChange] = {}
    for change in item.changes:
        key_value = change.previous if change.deleted else change.key_value
        if key_value is None:
            return None
        lease, revision = read_lease(key_value), change.key_value.mod_revision
        if lease is None:
            continue
        known = changes.get((revision, lease.resource))
        if known is None or not known.held:
            changes[revision, lease.resource] = LeaseChange(revision, lease, not change.deleted)
    return list(changes.values())


@dataclass(frozen=True, slots=True)
class DeletedKeys:
    """The keys deleted in one revision. An expired lease deletes its session and its claims in the same revision."""

    revision: int
    sessions: list[HeldSession] = field(default_factory=list)
    claims: list[HeldClaim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GenerationDoubt:
    """A reason to check the generation: a connection was replaced, the key changed, or history is missing.

    `another_life`: etcd was restored or replaced, so it may give the same revisions again.
    """

    another_life: bool = False


Event = DeletedKeys | GenerationDoubt | DrainMark


async def watch_events(etcd: EtcdClient, start_revision: int) -> AsyncGenerator[Event, None]:
    """Yields events from a revision on. Ends after a GenerationDoubt with missing history: list and watch again then.

    Use it in `aclosing`.
    """
    with translated_errors():
        async with aclosing(etcd.watch(b"", start_revision, previous=True)) as items:
            async for item in items:
                match item:
                    case KeyChanges() if failpoint_enabled("coordinator.deaf_watch"):
                        continue
                    case KeyChanges():
                        for event in _events(item):
                            yield event
                    case WatchReconnected():
                        yield GenerationDoubt()
                    case Resync(reason):
                        yield GenerationDoubt(another_life=reason is not ResyncReason.COMPACTED)


def _events(item: KeyChanges) -> list[Event]:
    """Returns one DeletedKeys per revision: two revisions mean two causes."""
    events: dict[int, DeletedKeys] = {}
    doubts: list[Event] = []
    marks: list[Event] = []
    for change in item.changes:
        if change.key_value.key == GENERATION_KEY:
            doubts = [GenerationDoubt()]
        elif change.deleted:
            revision = change.key_value.mod_revision
            _sort_in(change, events.setdefault(revision, DeletedKeys(revision)))
        elif change.key_value.key.startswith(DRAINS) and (mark := read_drain(change.key_value)) is not None:
            marks.append(mark)
    return [*events.values(), *marks, *doubts]


def _sort_in(change: KeyChange, event: DeletedKeys) -> None:
    before = change.previous
    if before is None:  # compacted since: the reconciliation finds it in the lists
        return
    if before.key.startswith(SESSIONS) and (session := read_session(before)) is not None:
        event.sessions.append(session)
    elif before.key.startswith(CLAIMS) and (claim := read_claim(before)) is not None:
        event.claims.append(claim)
