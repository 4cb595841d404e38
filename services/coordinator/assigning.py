"""Which session gets which offer: the one with the most free slots, no two suspects, and each where operators want."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from services.coordinator.session import Session
    from tenure.v1 import checkpoint_service_pb2 as pb


class Assigned(NamedTuple):
    """An offer, and the session with a slot set aside for it."""

    offer: pb.Offer
    session: Session


def assign(offers: Sequence[pb.Offer], sessions: Sequence[Session], now: float) -> list[Assigned]:
    """In the order of the offers. Those that nobody can take are left out."""
    slots = _FreeSlots(sessions, now)
    taken = ((offer, slots.take(offer)) for offer in offers)
    return [Assigned(offer, session) for offer, session in taken if session is not None]


class _FreeSlots:
    """A heap of (minus free slots, index of the session)."""

    def __init__(self, sessions: Sequence[Session], now: float) -> None:
        self._sessions = sessions
        free = [(-session.free_slots(now), index) for index, session in enumerate(sessions)]
        self._heap = [each for each in free if each[0] < 0]
        heapq.heapify(self._heap)
        self._for_suspects = {index for _, index in self._heap if not sessions[index].has_suspect}

    def take(self, offer: pb.Offer) -> Session | None:
        """A slot, or None."""
        passed_over: list[tuple[int, int]] = []
        while self._heap and not self._is_for(self._heap[0][1], offer):
            passed_over.append(heapq.heappop(self._heap))
        index = self._take_first() if self._heap else None
        if offer.suspect and index is not None:
            self._for_suspects.discard(index)
        for each in passed_over:
            heapq.heappush(self._heap, each)
        return None if index is None else self._sessions[index]

    def _is_for(self, index: int, offer: pb.Offer) -> bool:
        worker_id = self._sessions[index].worker_id
        if offer.suspect and index not in self._for_suspects:
            return False
        return worker_id == offer.only_worker_id if offer.only_worker_id else worker_id != offer.not_worker_id

    def _take_first(self) -> int:
        free, index = heapq.heappop(self._heap)
        if free < -1:
            heapq.heappush(self._heap, (free + 1, index))
        return index
