"""Stores the keys of named leases (LeaseService), each under an etcd lease of its own.

    leases/<tenant>/<resource>@<claim_id>

The claim id is part of the key, so that a transfer can delete the old key and put the new one in one transaction: the
transaction creates the new key, so its create_revision is higher. Every put has the condition that at most one key of
the resource exists.
"""
# ruff: noqa: N818 - like the domain's errors, these are named for what happened

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from services.coordinator.etcd.calls import EtcdError, EtcdUnclear, LeaseExpired
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Put,
    Txn,
    created_at,
    none_under,
    under_lease,
    value_is,
)
from services.coordinator.lease_store.generation_key import write_generation
from services.coordinator.lease_store.records import GENERATION_KEY, read_record, write_record
from services.coordinator.lease_store.refusals import GenerationMoved, translated_errors
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import compose_epoch

LEASES: Final = b"leases/"
_log: Final = logging.getLogger(__name__)


class LeaseTaken(Exception):
    """The resource is held, or the lease to replace is gone: look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The holder of a resource and the reason. `acquired_at` is Unix time in seconds, for people.

    `ttl_seconds` is the TTL that etcd granted. `transferred`: the holder was named by a transfer, and may still acquire
    the lease itself.
    """

    claim_id: str
    holder: str
    generation: int
    request_id: str
    asked_ttl_seconds: int
    ttl_seconds: int
    previous_epoch: int
    reason: str
    message: str
    acquired_at: float
    transferred: bool = False


@dataclass(frozen=True, slots=True)
class NamedLease:
    """The lease of a named resource as etcd has it."""

    tenant: str
    resource: str
    record: LeaseRecord
    create_revision: int
    lease: int

    @property
    def epoch(self) -> int:
        """The epoch in its fencing token."""
        return compose_epoch(self.record.generation, self.create_revision)

    @property
    def key(self) -> bytes:
        """The key in etcd."""
        return _slot(self.tenant, self.resource) + self.record.claim_id.encode()


class LeaseListing(NamedTuple):
    """Leases sorted by name, and the revision of etcd at which they were read."""

    revision: int
    leases: list[NamedLease]


class NamedLeases:
    """Makes, finds, renews and ends leases of named resources."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self._listed: dict[KeyValue, NamedLease | None] = {}

    async def claim(
        self, tenant: str, resource: str, record: LeaseRecord, *, replacing: NamedLease | None = None
    ) -> NamedLease:
        """Makes a lease of a free resource, or one that replaces exactly `replacing`, under an etcd lease of its own.

        Reads an unclear answer back by claim id. Raises LeaseTaken and GenerationMoved. Raises Unavailable also when
        the outcome is unknown: the lease may still appear, and a repeat of the request finds it.
        """
        with translated_errors():
            granted = await self._etcd.grant(record.asked_ttl_seconds)
            wanted = NamedLease(tenant, resource, replace(record, ttl_seconds=granted.ttl_seconds), 0, granted.id)
            try:
                result = await self._etcd.txn(_claim_txn(wanted, replacing))
            except EtcdUnclear as error:
                _log.warning("the claim of a lease is unclear and read back", extra={"lease": resource, "error": error})
                holder_lease = await self.find(tenant, resource)
                if holder_lease is None or holder_lease.record.claim_id != record.claim_id:
                    raise
                return holder_lease
            except LeaseExpired as error:
                raise Unavailable("the lease expired while it was being made") from error
        if result.succeeded:
            return replace(wanted, create_revision=result.revision)
        await self._revoke(granted.id)
        generation = result.key_values
        if not generation or generation[0].value != write_generation(record.generation):
            raise GenerationMoved(f"etcd is not at generation {record.generation}")
        raise LeaseTaken

    async def find(self, tenant: str, resource: str) -> NamedLease | None:
        """Returns the lease of a resource, read linearizably, or None. Raises Unavailable."""
        with translated_errors():
            listing = await self._etcd.list(_slot(tenant, resource))
        leases = [lease for lease in map(read_lease, listing.key_values) if lease is not None]
        return leases[0] if leases else None

    async def count(self, tenant: str) -> int:
        """Returns the number of the tenant's leases. Raises Unavailable."""
        with translated_errors():
            return await self._etcd.count(tenant_prefix(tenant))

    async def list_tenant(self, tenant: str, prefix: str) -> LeaseListing:
        """Returns the tenant's leases whose names begin with `prefix`. Raises Unavailable."""
        with translated_errors():
            listing = await self._etcd.list(tenant_prefix(tenant) + prefix.encode())
        leases = [lease for lease in map(read_lease, listing.key_values) if lease is not None]
        return LeaseListing(listing.revision, sorted(leases, key=lambda lease: lease.resource))

    async def list_all(self) -> list[NamedLease]:
        """Returns the leases of all tenants at one revision. Raises Unavailable."""
        with translated_errors():
            listing = await self._etcd.list(LEASES)
        before = self._listed  # a lease's key never changes, so parsed ones are kept
        self._listed = {each: before[each] if each in before else read_lease(each) for each in listing.key_values}
        return [lease for lease in self._listed.values() if lease is not None]

    async def keep_alive(self, held: NamedLease) -> int:
        """Renews a lease once. Returns its TTL in seconds. Raises SessionLost and Unavailable."""
        with translated_errors():
            return await self._etcd.keep_alive(held.lease)

    async def remaining_seconds(self, held: NamedLease) -> int:
        """Returns the seconds that the lease lives without a renewal; 0 for an expired one. Raises Unavailable."""
        with translated_errors():
            try:
                return await self._etcd.time_to_live(held.lease)
            except LeaseExpired:
                return 0

    async def delete(self, held: NamedLease) -> bool:
        """Ends exactly this lease.

        Returns whether it still existed. Raises Unavailable when that is unknown. A repeat is safe.
        """
        with translated_errors():
            deleted = await self._etcd.delete(held.key, only_if=_still(held))
        await self._revoke(held.lease)
        return deleted

    async def forget(self, replaced: NamedLease) -> None:
        """Ends the etcd lease of a replaced key, which has no key any more."""
        await self._revoke(replaced.lease)

    async def delete_older(self, generation: int) -> None:
        """Ends all leases of older generations. Raises Unavailable."""
        for held in await self.list_all():
            if held.record.generation < generation:
                await self.delete(held)

    async def _revoke(self, lease: int) -> None:
        try:
            await self._etcd.revoke(lease)
        except EtcdError as error:  # without a key the etcd lease has no effect, and it expires
            _log.info("an etcd lease without keys was not revoked; it will expire", extra={"error": error})


def tenant_prefix(tenant: str) -> bytes:
    return LEASES + tenant.encode() + b"/"


def read_lease(key_value: KeyValue) -> NamedLease | None:
    """Returns the lease in a key. Logs and ignores another value: None."""
    record = read_record(LeaseRecord, key_value)
    if record is None:
        return None
    tenant, _, rest = key_value.key.removeprefix(LEASES).decode(errors="replace").partition("/")
    resource, _, _ = rest.rpartition("@")
    return NamedLease(tenant, resource, record, key_value.create_revision, key_value.lease)


def _slot(tenant: str, resource: str) -> bytes:
    """Returns the common prefix of all claims of a resource. Names have no `@`."""
    return tenant_prefix(tenant) + resource.encode() + b"@"


def _still(held: NamedLease) -> tuple[Compare, ...]:
    """The condition for exactly this lease: a restored etcd gives revisions again, but never an etcd lease id."""
    return (created_at(held.key, held.create_revision), under_lease(held.key, held.lease))


def _claim_txn(wanted: NamedLease, replacing: NamedLease | None) -> Txn:
    slot = _slot(wanted.tenant, wanted.resource)
    free = (none_under(slot),) if replacing is None else _still(replacing)
    put = Put(wanted.key, write_record(wanted.record), lease=wanted.lease)
    return Txn(
        when=(*free, value_is(GENERATION_KEY, write_generation(wanted.record.generation))),
        then=(put,) if replacing is None else (Delete(replacing.key), put),
        otherwise=(Get(GENERATION_KEY),),
    )
