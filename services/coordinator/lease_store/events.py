"""What others did to the keys, as it happens: hints for the duties that make sure by lists."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.coordinator.lease_store.drain_marks import DrainMark, read_drain
from services.coordinator.lease_store.records import (
    CLAIMS,
    DRAINS,
    GENERATION_KEY,
    PREFIX,
    SESSIONS,
    HeldClaim,
    HeldSession,
    read_claim,
    read_session,
)
from services.coordinator.lease_store.refusals import asking_etcd
from tenure.runtime.etcd.watch import Change, Changes, Reconnected, Resync, ResyncReason
from tenure.runtime.failpoint import failpoint_enabled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tenure.runtime.etcd.client import EtcdClient


@dataclass(frozen=True, slots=True)
class Vanished:
    """What was deleted in one revision. A lease that ends takes its session and its claims in the same one."""

    revision: int
    sessions: list[HeldSession] = field(default_factory=list)
    claims: list[HeldClaim] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Ask anew what is there: a connection was replaced, the generation was touched, or history is missing.

    `another_life`: etcd was restored or replaced, so its revisions may be given a second time.
    """

    another_life: bool = False


Event = Vanished | Doubt | DrainMark


async def watch_events(etcd: EtcdClient, start_revision: int) -> AsyncGenerator[Event, None]:
    """From a revision on, until a Doubt with missing history ends it: then list, and watch again. Use in `aclosing`."""
    with asking_etcd():
        async with aclosing(etcd.watch(PREFIX, start_revision, previous=True)) as items:
            async for item in items:
                match item:
                    case Changes() if failpoint_enabled("coordinator.deaf_watch"):
                        continue
                    case Changes():
                        for event in _events(item):
                            yield event
                    case Reconnected():
                        yield Doubt()
                    case Resync(reason):
                        yield Doubt(another_life=reason is not ResyncReason.COMPACTED)


def _events(item: Changes) -> list[Event]:
    """One Vanished per revision: two revisions mean two causes."""
    events: dict[int, Vanished] = {}
    doubts: list[Event] = []
    marks: list[Event] = []
    for change in item.changes:
        if change.key_value.key == GENERATION_KEY:
            doubts = [Doubt()]
        elif change.deleted:
            revision = change.key_value.mod_revision
            _sort_in(change, events.setdefault(revision, Vanished(revision)))
        elif change.key_value.key.startswith(DRAINS) and (mark := read_drain(change.key_value)) is not None:
            marks.append(mark)
    return [*events.values(), *marks, *doubts]


def _sort_in(change: Change, event: Vanished) -> None:
    before = change.previous
    if before is None:  # compacted since: the lists will tell
        return
    if before.key.startswith(SESSIONS) and (session := read_session(before)) is not None:
        event.sessions.append(session)
    elif before.key.startswith(CLAIMS) and (claim := read_claim(before)) is not None:
        event.claims.append(claim)
