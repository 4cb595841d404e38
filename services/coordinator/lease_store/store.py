"""The lease store as its users hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.coordinator.lease_store.claim_keys import ClaimKeys
from services.coordinator.lease_store.events import Doubt, Vanished, watch_events
from services.coordinator.lease_store.generation_key import GenerationKey
from services.coordinator.lease_store.session_keys import SessionKeys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tenure.runtime.etcd.client import EtcdClient


class LeaseStore:
    """Sessions, claims and the generation in one etcd."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self.sessions = SessionKeys(etcd)
        self.claims = ClaimKeys(etcd)
        self.generation = GenerationKey(etcd)

    def watch(self, start_revision: int) -> AsyncGenerator[Vanished | Doubt, None]:
        """What vanishes from a revision on. See `watch_events`."""
        return watch_events(self._etcd, start_revision)
