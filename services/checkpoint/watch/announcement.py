"""An announcement: what a committed transaction changed, for watchers of this process and for the other replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.checkpoint.commit.draft import Draft, Move, time_of
from services.checkpoint.rows import BillRow
from services.checkpoint.watch.appended_entries import AppendedEntries
from tenure.domain.states import TaskState


@dataclass(slots=True)
class Announcement:
    """The news to announce once the transaction is durable.

    - task_ids: tasks with new entries; `appended` has the entries where they are known
    - claimable: a task may have become claimable
    - interrupted_task_ids: running tasks with an interrupting message
    - changed_tenants: tenants with new rows in `changes`
    - sub_agent_events: there are new sub-agent events
    - source_lines: lines of sources may admit a task
    - moves, bills: what this process counts; other replicas do not
    """

    task_ids: set[str] = field(default_factory=set)
    claimable: bool = False
    ending_task_ids: set[str] = field(default_factory=set)
    ended_task_ids: set[str] = field(default_factory=set)
    interrupted_task_ids: set[str] = field(default_factory=set)
    changed_tenants: set[str] = field(default_factory=set)
    sub_agent_events: bool = False
    source_lines: bool = False
    appended: dict[str, AppendedEntries] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    bills: list[BillRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(  # an interrupted task has a new entry
            self.task_ids or self.claimable or self.ending_task_ids or self.ended_task_ids or self.changed_tenants
        )

    def add(self, other: Announcement) -> None:
        """Merges another announcement into this one."""
        self.task_ids |= other.task_ids
        self.ending_task_ids |= other.ending_task_ids
        self.ended_task_ids |= other.ended_task_ids
        self.interrupted_task_ids |= other.interrupted_task_ids
        self.changed_tenants |= other.changed_tenants
        self.claimable = self.claimable or other.claimable
        self.sub_agent_events = self.sub_agent_events or other.sub_agent_events
        self.source_lines = self.source_lines or other.source_lines
        self.appended |= other.appended
        self.moves += other.moves
        self.bills += other.bills

    def without_entries(self) -> Announcement:
        """Returns a copy without entries, for the other replicas, which get ids only."""
        return replace(self, appended={}, moves=[], bills=[])


def announcement_of(drafts: Sequence[Draft]) -> Announcement:
    """Returns the announcement of the drafts that one transaction wrote."""
    announcement = Announcement()
    touched = [draft for draft in drafts if draft.has_work]
    if not touched:
        return announcement
    recorded_at = time_of(touched)
    for draft in touched:
        announcement.moves += draft.moves
        announcement.bills += draft.bills
        if draft.entries:
            announcement.task_ids.add(draft.row.task_id)
            announcement.appended[draft.row.task_id] = AppendedEntries(draft.entries, recorded_at, draft.ended)
        announcement.claimable = announcement.claimable or draft.claimable or bool(draft.spawned)
        announcement.sub_agent_events = announcement.sub_agent_events or _concerns_sub_agents(draft)
        announcement.source_lines = announcement.source_lines or (draft.moved and draft.concerns_line)
        if draft.moved or draft.warnings or draft.spawned:
            announcement.changed_tenants.add(draft.row.tenant)
        if draft.ended:
            announcement.ended_task_ids.add(draft.row.task_id)
        elif draft.moved and draft.row.ending_state:
            announcement.ending_task_ids.add(draft.row.task_id)
        if draft.interrupting_sequence and draft.row.state is TaskState.RUNNING:
            announcement.interrupted_task_ids.add(draft.row.task_id)
    return announcement


def _concerns_sub_agents(draft: Draft) -> bool:
    """Whether the transaction inserts a sub-agent event, passes a message on or raises a budget. It follows the same
    rules as the statements and the trigger that write them.
    """
    row = draft.row
    return (
        draft.budget.raised
        or draft.passes_on
        or (draft.moved and (row.sub_agents > 0 or (draft.ended and row.parent_task_id is not None)))
    )
