"""Marks of workers that are to drain: one key a session, under the session's own lease, so that it goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.coordinator.lease_store.records import (
    DRAINS,
    drain_key,
    read_record,
    session_key,
    write_record,
)
from services.coordinator.lease_store.refusals import asking_etcd
from tenure.runtime.etcd.transactions import under_lease

if TYPE_CHECKING:
    from services.coordinator.lease_store.records import HeldSession
    from tenure.runtime.etcd.client import EtcdClient
    from tenure.runtime.etcd.values import KeyValue


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
            found = await self._etcd.get(drain_key(session_id))
        mark = None if found is None else read_drain(found)
        return None if mark is None else mark.record

    async def list_all(self) -> dict[str, DrainRecord]:
        """All marks, by session_id. Raises Unavailable."""
        with asking_etcd():
            listing = await self._etcd.list(DRAINS)
        marks = [mark for mark in map(read_drain, listing.key_values) if mark is not None]
        return {mark.session_id: mark.record for mark in marks}


def read_drain(found: KeyValue) -> DrainMark | None:
    """The mark in a key, or None for something that is none: told in the log and left alone."""
    record = read_record(DrainRecord, found)
    return None if record is None else DrainMark(found.key.removeprefix(DRAINS).decode(errors="replace"), record)
