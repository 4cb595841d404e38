"""What happens to named resources, from a revision on, none left out."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.coordinator.lease_store.named_leases import HeldLease, read_lease, tenant_prefix
from services.coordinator.lease_store.refusals import asking_etcd
from tenure.runtime.etcd.watch import Changes, Reconnected, Resync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tenure.runtime.etcd.client import EtcdClient


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """A resource was taken, or (`held` False) is held by nobody any more. `revision` is etcd's."""

    revision: int
    lease: HeldLease
    held: bool


async def watch_leases(
    etcd: EtcdClient, tenant: str, prefix: str, start_revision: int
) -> AsyncGenerator[list[LeaseChange], None]:
    """All changes of one or more revisions at once. Ends when history is missing: then list, and watch again.

    Use in `aclosing`. A connection that breaks is replaced.
    """
    with asking_etcd():
        watch = etcd.watch(tenant_prefix(tenant) + prefix.encode(), start_revision, previous=True)
        async with aclosing(watch) as items:
            async for item in items:
                match item:
                    case Changes():
                        changes = _read(item)
                        if changes is None:
                            return
                        yield changes
                    case Reconnected():
                        continue
                    case Resync():
                        return


def _read(item: Changes) -> list[LeaseChange] | None:
    """In order. A transfer deletes and puts in one revision, and is told as what it comes to; None: history is cut."""
    told: dict[tuple[int, str], LeaseChange] = {}
    for change in item.changes:
        found = change.previous if change.deleted else change.key_value
        if found is None:
            return None
        lease, revision = read_lease(found), change.key_value.mod_revision
        if lease is None:
            continue
        known = told.get((revision, lease.resource))
        if known is None or not known.held:
            told[revision, lease.resource] = LeaseChange(revision, lease, not change.deleted)
    return list(told.values())
