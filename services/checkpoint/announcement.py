"""What a transaction amounts to for those who wait: told inside the process, and to the other replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.checkpoint.draft import Draft


@dataclass(slots=True)
class Announcement:
    """What others want to hear once the transaction is durable. `task_ids`: their ledgers grew."""

    task_ids: set[str] = field(default_factory=set)
    claimable: bool = False
    ending_task_ids: set[str] = field(default_factory=set)
    ended_task_ids: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.task_ids or self.claimable or self.ending_task_ids or self.ended_task_ids)

    def add(self, other: Announcement) -> None:
        """Take another one in."""
        self.task_ids |= other.task_ids
        self.ending_task_ids |= other.ending_task_ids
        self.ended_task_ids |= other.ended_task_ids
        self.claimable = self.claimable or other.claimable


def announcement_of(drafts: Iterable[Draft]) -> Announcement:
    """What these drafts amount to for watchers and coordinators."""
    told = Announcement()
    for draft in drafts:
        if draft.has_work:
            told.task_ids.add(draft.row.task_id)
            told.claimable = told.claimable or draft.claimable
            if draft.ended:
                told.ended_task_ids.add(draft.row.task_id)
            elif draft.moved and draft.row.ending_state:
                told.ending_task_ids.add(draft.row.task_id)
    return told
