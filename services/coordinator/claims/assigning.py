"""Assigns offers to sessions: most free slots first, one suspect task per session, operators' wishes respected.

A task first fills the slots that are reserved for its tier: otherwise it would take a slot that other tiers may use.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from services.coordinator.sessions.session import AttachedSession
from tenure.domain.task import Priority
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import PRIORITIES

_Entry = tuple[bool, int, int]


class Assigned(NamedTuple):
    """An offer, and the session with a slot reserved for it."""

    offer: pb.Offer
    session: AttachedSession

    @property
    def tier(self) -> Priority:
        """The tier whose slots the task fills."""
        return tier_of(self.offer)


def tier_of(offer: pb.Offer) -> Priority:
    """Returns the tier of the offered task."""
    return PRIORITIES.to_domain(offer.priority)


def assign(offers: Sequence[pb.Offer], sessions: Sequence[AttachedSession], now: float) -> list[Assigned]:
    """Returns assignments in the order of the offers, without offers that no session can take."""
    slots = _FreeSlots(sessions, now)
    taken = ((offer, slots.take(offer)) for offer in offers)
    return [Assigned(offer, session) for offer, session in taken if session is not None]


class _FreeSlots:
    """One heap per tier of (whether no slot is reserved for the tier, minus free slots, index of the session).

    An entry is corrected when it comes up: slots taken meanwhile can only have moved it further back.
    """

    def __init__(self, sessions: Sequence[AttachedSession], now: float) -> None:
        self._sessions = sessions
        self._slots = [session.slots(now) for session in sessions]
        self._heaps = {tier: self._heap(tier) for tier in Priority}
        self._for_suspects = {index for index, session in enumerate(sessions) if not session.has_suspect}

    def take(self, offer: pb.Offer) -> AttachedSession | None:
        """Takes a slot for the offer, or returns None."""
        tier = tier_of(offer)
        heap = self._heaps[tier]
        passed_over: list[_Entry] = []
        index = None
        while heap and index is None:
            entry = heapq.heappop(heap)
            now = self._entry(tier, entry[-1])
            if now is not None and now != entry:
                heapq.heappush(heap, now)
            elif now is not None and self._is_for(entry[-1], offer):
                index = entry[-1]
            elif now is not None:
                passed_over.append(entry)
        for each in passed_over:
            heapq.heappush(heap, each)
        return None if index is None else self._take_at(index, tier, suspect=offer.suspect)

    def _take_at(self, index: int, tier: Priority, *, suspect: bool) -> AttachedSession:
        self._slots[index] = self._slots[index].after(tier)
        entry = self._entry(tier, index)
        if entry is not None:
            heapq.heappush(self._heaps[tier], entry)
        if suspect:
            self._for_suspects.discard(index)
        return self._sessions[index]

    def _heap(self, tier: Priority) -> list[_Entry]:
        entries = [entry for index in range(len(self._slots)) if (entry := self._entry(tier, index)) is not None]
        heapq.heapify(entries)
        return entries

    def _entry(self, tier: Priority, index: int) -> _Entry | None:
        slots = self._slots[index]
        free = slots.of(tier)
        return (not slots.kept_for(tier), -free, index) if free else None

    def _is_for(self, index: int, offer: pb.Offer) -> bool:
        worker_id = self._sessions[index].worker_id
        if offer.suspect and index not in self._for_suspects:
            return False
        if not self._sessions[index].takes_tenant(offer.tenant):  # its pool has changed since the request for offers
            return False
        return worker_id == offer.only_worker_id if offer.only_worker_id else worker_id != offer.not_worker_id
