"""Session keys and their leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.coordinator.etcd.calls import LeaseExpired
from services.coordinator.etcd.transactions import absent, modified_at, under_lease, value_is
from services.coordinator.lease_store.generation_key import write_generation
from services.coordinator.lease_store.records import (
    DRAINS,
    GENERATION_KEY,
    SESSIONS,
    HeldSession,
    SessionRecord,
    drain_key,
    read_record,
    read_session,
    session_key,
    write_record,
)
from services.coordinator.lease_store.refusals import GenerationMoved, asking_etcd
from tenure.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from services.coordinator.etcd.client import EtcdClient
    from services.coordinator.etcd.transactions import KeyValue


# Marks of workers that are to drain: one key a session, under the session's own lease, so that it goes with it.


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRecord:
    """Who wants a session's worker to drain, and why."""

    actor: str
    reason: str

    @property
    def message(self) -> str:
        """For people, and for the ledgers of the tasks that are given back."""
        return f"{self.actor} drains the worker: {self.reason}"


@dataclass(frozen=True, slots=True)
class DrainMark:
    """A mark as etcd has it."""

    session_id: str
    record: DrainRecord


class DrainMarks:
    """Every replica watches these keys; who missed one finds it in the list."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    async def put(self, held: HeldSession, record: DrainRecord) -> bool:
        """Mark a session; whether it was still there. Raises SessionLost, Unavailable; repeatable."""
        conditions = (under_lease(session_key(held.session_id), held.lease),)
        with asking_etcd():
            put = await self._etcd.put(
                drain_key(held.session_id), write_record(record), lease=held.lease, only_if=conditions
            )
        return put.succeeded

    async def find(self, session_id: str) -> DrainRecord | None:
        """The mark of a session. Raises Unavailable."""
        with asking_etcd():
            key_value = await self._etcd.get(drain_key(session_id))
        mark = None if key_value is None else read_drain(key_value)
        return None if mark is None else mark.record

    async def list_all(self) -> dict[str, DrainRecord]:
        """All marks, by session_id. Raises Unavailable."""
        with asking_etcd():
            listing = await self._etcd.list(DRAINS)
        marks = [mark for mark in map(read_drain, listing.key_values) if mark is not None]
        return {mark.session_id: mark.record for mark in marks}


def read_drain(key_value: KeyValue) -> DrainMark | None:
    """The mark in a key, or None for something that is none: told in the log and left alone."""
    record = read_record(DrainRecord, key_value)
    return None if record is None else DrainMark(key_value.key.removeprefix(DRAINS).decode(errors="replace"), record)


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
            key_value = await self._etcd.get(session_key(session_id))
        return None if key_value is None else read_session(key_value)

    async def reattach(self, session: HeldSession, record: SessionRecord) -> HeldSession | None:
        """Put the key anew under the same lease, if nobody touched it since it was found; None if somebody did.

        The new mod_revision is what keeps the coordinator it was attached to from ending it. Raises SessionLost.
        """
        key = session_key(session.session_id)
        conditions = (
            modified_at(key, session.mod_revision),
            value_is(GENERATION_KEY, write_generation(record.generation)),
        )
        await failpoint("coordinator.before_reattach")
        with asking_etcd():
            put = await self._etcd.put(key, write_record(record), lease=session.lease, only_if=conditions)
        await failpoint("coordinator.after_reattach")
        return HeldSession(session.session_id, record, session.lease, put.revision) if put.succeeded else None

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
