"""Session keys and their leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.coordinator.lease_store.generation_key import write_generation
from services.coordinator.lease_store.records import (
    GENERATION_KEY,
    SESSIONS,
    HeldSession,
    SessionRecord,
    read_session,
    session_key,
    write_record,
)
from services.coordinator.lease_store.refusals import GenerationMoved, asking_etcd
from tenure.runtime.etcd.errors import LeaseExpired
from tenure.runtime.etcd.transactions import absent, modified_at, value_is
from tenure.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from tenure.runtime.etcd.client import EtcdClient


class SessionKeys:
    """One lease per session, and one key under it that says to whom it is attached."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    async def create(self, session_id: str, record: SessionRecord, ttl_seconds: int) -> HeldSession:
        """A new session. Raises GenerationMoved, Unavailable; what was half done ends with its lease."""
        await failpoint("coordinator.before_session")
        with asking_etcd():
            lease = await self._etcd.grant(ttl_seconds)
            await failpoint("coordinator.after_lease")
            key = session_key(session_id)
            conditions = (absent(key), value_is(GENERATION_KEY, write_generation(record.generation)))
            put = await self._etcd.put(key, write_record(record), lease=lease.id, only_if=conditions)
        if not put.succeeded:
            raise GenerationMoved(f"etcd is not at generation {record.generation}")
        await failpoint("coordinator.after_session")
        return HeldSession(session_id, record, lease.id, put.revision)

    async def find(self, session_id: str) -> HeldSession | None:
        """The session as it is now, read linearizably."""
        with asking_etcd():
            found = await self._etcd.get(session_key(session_id))
        return None if found is None else read_session(found)

    async def reattach(self, found: HeldSession, record: SessionRecord) -> HeldSession | None:
        """Put the key anew under the same lease, if nobody touched it since it was found; None if somebody did.

        The new mod_revision is what keeps the coordinator it was attached to from ending it. Raises SessionLost.
        """
        key = session_key(found.session_id)
        conditions = (
            modified_at(key, found.mod_revision),
            value_is(GENERATION_KEY, write_generation(record.generation)),
        )
        await failpoint("coordinator.before_reattach")
        with asking_etcd():
            put = await self._etcd.put(key, write_record(record), lease=found.lease, only_if=conditions)
        await failpoint("coordinator.after_reattach")
        return HeldSession(found.session_id, record, found.lease, put.revision) if put.succeeded else None

    async def keep_alive(self, held: HeldSession, *, timeout_seconds: float) -> None:
        """Renew the session's lease, once. Raises SessionLost, Unavailable."""
        with asking_etcd():
            await self._etcd.keep_alive(held.lease, timeout_seconds=timeout_seconds)

    async def end(self, held: HeldSession) -> bool:
        """End the session with all its claims, if it is still attached as `held` says; whether it was.

        The key goes first, on that condition, and the lease only after it: a lease cannot be revoked conditionally.
        Raises Unavailable when it is not known; repeatable.
        """
        key = session_key(held.session_id)
        await failpoint("coordinator.before_session_end")
        with asking_etcd():
            ended = await self._etcd.delete(key, only_if=(modified_at(key, held.mod_revision),))
            if not ended and await self._etcd.get(key) is not None:
                return False
            await failpoint("coordinator.before_revoke")
            await self._etcd.revoke(held.lease)
        await failpoint("coordinator.after_revoke")
        return True

    async def remaining_seconds(self, lease: int) -> int:
        """How long a lease lives without a renewal, 0 for one that is gone."""
        with asking_etcd():
            try:
                return await self._etcd.time_to_live(lease)
            except LeaseExpired:
                return 0

    async def list_all(self) -> list[HeldSession]:
        """All sessions at one revision, coordinators' own included."""
        with asking_etcd():
            listing = await self._etcd.list(SESSIONS)
        return [session for session in map(read_session, listing.key_values) if session is not None]
