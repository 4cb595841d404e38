"""Stores session keys with their leases, and drain marks."""

from __future__ import annotations

from dataclasses import dataclass

from services.coordinator.etcd.calls import LeaseExpired
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import KeyValue, absent, modified_at, under_lease, value_is
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
from services.coordinator.lease_store.refusals import GenerationMoved, translated_errors
from tenure.runtime.failpoints import failpoint

# Drain marks: one key per session, under the session's own lease, so that it ends with the session.


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRecord:
    """The operator who drains a session's worker, and the reason."""

    actor: str
    reason: str

    @property
    def message(self) -> str:
        """The message for people and for the ledgers of the tasks that the worker gives back."""
        return f"{self.actor} drains the worker: {self.reason}"


@dataclass(frozen=True, slots=True)
class DrainMark:
    """A drain mark as etcd has it."""

    session_id: str
    record: DrainRecord


class DrainMarks:
    """Stores drain marks. Every replica watches these keys, and finds a missed one in the list."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    async def put(self, held: HeldSession, record: DrainRecord) -> bool:
        """Marks a session. Returns whether it still existed. Raises SessionLost and Unavailable. A repeat is safe."""
        conditions = (under_lease(session_key(held.session_id), held.lease),)
        with translated_errors():
            put = await self._etcd.put(
                drain_key(held.session_id), write_record(record), lease=held.lease, only_if=conditions
            )
        return put.succeeded

    async def find(self, session_id: str) -> DrainRecord | None:
        """Returns the drain mark of a session, or None. Raises Unavailable."""
        with translated_errors():
            key_value = await self._etcd.get(drain_key(session_id))
        mark = None if key_value is None else read_drain(key_value)
        return None if mark is None else mark.record

    async def list_all(self) -> dict[str, DrainRecord]:
        """Returns all drain marks by session id. Raises Unavailable."""
        with translated_errors():
            listing = await self._etcd.list(DRAINS)
        marks = [mark for mark in map(read_drain, listing.key_values) if mark is not None]
        return {mark.session_id: mark.record for mark in marks}


def read_drain(key_value: KeyValue) -> DrainMark | None:
    """Returns the drain mark in a key. Logs and ignores another value: None."""
    record = read_record(DrainRecord, key_value)
    return None if record is None else DrainMark(key_value.key.removeprefix(DRAINS).decode(errors="replace"), record)


class SessionKeys:
    """Stores sessions: one lease per session, and one key under it that names the attached coordinator."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    async def create(self, session_id: str, record: SessionRecord, ttl_seconds: int) -> HeldSession:
        """Creates a session. Raises GenerationMoved and Unavailable; a half-made session ends with its lease."""
        await failpoint("coordinator.before_session")
        with translated_errors():
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
        """Returns the session, read linearizably, or None."""
        with translated_errors():
            key_value = await self._etcd.get(session_key(session_id))
        return None if key_value is None else read_session(key_value)

    async def reattach(self, session: HeldSession, record: SessionRecord) -> HeldSession | None:
        """Puts the key again under the same lease if it is unchanged since it was found; otherwise returns None.

        The new mod_revision keeps the former coordinator from ending the session. Raises SessionLost.
        """
        key = session_key(session.session_id)
        conditions = (
            modified_at(key, session.mod_revision),
            value_is(GENERATION_KEY, write_generation(record.generation)),
        )
        await failpoint("coordinator.before_reattach")
        with translated_errors():
            put = await self._etcd.put(key, write_record(record), lease=session.lease, only_if=conditions)
        await failpoint("coordinator.after_reattach")
        return HeldSession(session.session_id, record, session.lease, put.revision) if put.succeeded else None

    async def keep_alive(self, held: HeldSession, *, timeout_seconds: float) -> None:
        """Renews the session's lease once. Raises SessionLost and Unavailable."""
        with translated_errors():
            await self._etcd.keep_alive(held.lease, timeout_seconds=timeout_seconds)

    async def end(self, held: HeldSession) -> bool:
        """Ends the session with all its claims if it is still attached as in `held`. Returns whether it was.

        Deletes the key first, on that condition, and revokes the lease second, because a lease cannot be revoked
        conditionally. Raises Unavailable when the outcome is unknown. A repeat is safe.
        """
        key = session_key(held.session_id)
        await failpoint("coordinator.before_session_end")
        with translated_errors():
            ended = await self._etcd.delete(key, only_if=(modified_at(key, held.mod_revision),))
            if not ended and await self._etcd.get(key) is not None:
                return False
            await failpoint("coordinator.before_revoke")
            await self._etcd.revoke(held.lease)
        await failpoint("coordinator.after_revoke")
        return True

    async def remaining_seconds(self, lease: int) -> int:
        """Returns the seconds that a lease lives without a renewal; 0 for an expired one."""
        with translated_errors():
            try:
                return await self._etcd.time_to_live(lease)
            except LeaseExpired:
                return 0

    async def list_all(self) -> list[HeldSession]:
        """Returns all sessions at one revision, including the coordinators' own."""
        with translated_errors():
            listing = await self._etcd.list(SESSIONS)
        return [session for session in map(read_session, listing.key_values) if session is not None]
