"""Combines all keys of one etcd into the LeaseStore."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.endpoints import TlsIdentity
from services.coordinator.lease_store.claim_keys import ClaimKeys
from services.coordinator.lease_store.events import Event, LeaseChange, watch_events, watch_leases
from services.coordinator.lease_store.generation_key import GenerationKey
from services.coordinator.lease_store.named_leases import NamedLeases
from services.coordinator.lease_store.refusals import translated_errors
from services.coordinator.lease_store.session_keys import DrainMarks, SessionKeys
from tenure.runtime.settings import ConfigurationError


class LeaseStore:
    """The sessions, claims, drain marks, named leases and the generation in the namespace of a client of etcd."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self.sessions = SessionKeys(etcd)
        self.claims = ClaimKeys(etcd)
        self.drains = DrainMarks(etcd)
        self.generation = GenerationKey(etcd)
        self.leases = NamedLeases(etcd)

    async def alarms(self, *, timeout_seconds: float) -> frozenset[str]:
        """Returns the alarms that etcd has raised. Raises Unavailable."""
        with translated_errors():
            return await self._etcd.alarms(timeout_seconds=timeout_seconds)

    def watch(self, start_revision: int) -> AsyncGenerator[Event, None]:
        """Yields deletions and drain marks from a revision on. See `watch_events`."""
        return watch_events(self._etcd, start_revision)

    def watch_leases(self, tenant: str, prefix: str, start_revision: int) -> AsyncGenerator[list[LeaseChange], None]:
        """Yields the changes of a tenant's named leases from a revision on. See `events.watch_leases`."""
        return watch_leases(self._etcd, tenant, prefix, start_revision)


@asynccontextmanager
async def open_lease_store(
    endpoints: Sequence[str],
    *,
    key_prefix: str,
    ca_file: Path | None,
    certificate_file: Path | None,
    key_file: Path | None,
) -> AsyncIterator[LeaseStore]:
    """Opens the store over these members, all of its keys under the prefix.

    Without files it uses TLS only if the addresses say https. Raises ConfigurationError for a file that cannot be read.
    """
    files = (ca_file, certificate_file, key_file)
    ca, certificate, key = (None if file is None else _content(file) for file in files)
    tls = TlsIdentity(ca=ca, certificate=certificate, key=key) if any(files) else None
    async with EtcdClient(endpoints, namespace=key_prefix.encode(), tls=tls) as etcd:
        yield LeaseStore(etcd)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError([f"{file}: the file for TLS with etcd cannot be read: {error.strerror}"]) from error
