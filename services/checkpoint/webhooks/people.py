"""The events of webhooks whose receivers are people: which of them become messages, and what a message has besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from services.checkpoint.queries import fetch_all
from services.checkpoint.watch.change_feed import RecordedChange
from services.checkpoint.webhooks.rows import WEBHOOKS
from tenure.domain.notifications import LateChange, Notice, notice_of
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.texts import one_line
from tenure.domain.webhooks import event_of
from tenure.runtime.store.postgres import Connection
from tenure.v1 import task_pb2
from tenure.wire.common import moment

_GOAL_CHARACTERS: Final = 80


class ChosenChanges(NamedTuple):
    """The changes that become messages, each with further data of its message, and those for the summary."""

    messages: list[tuple[RecordedChange, dict[str, Any]]]
    late: list[LateChange]


class PeopleEvents(NamedTuple):
    """`public_url`: where people reach the gateway's HTTP port; "": messages have no link to the console."""

    public_url: str = ""

    async def choose(
        self,
        connection: Connection,
        changes: Sequence[RecordedChange],
        tasks: Mapping[str, task_pb2.Task],
        task_filter: task_pb2.TaskFilter,
    ) -> ChosenChanges:
        """Leaves out what the message of the root has. A filter by a root task leaves out nothing."""
        chosen, now = ChosenChanges([], []), datetime.now(UTC)
        for change in changes:
            task = tasks.get(change.task_id)
            notice = notice_of(
                event_type_of(change),
                change.reason,
                age_seconds=(now - change.changed_at).total_seconds(),
                is_sub_agent=task is not None and task.depth > 0 and not task_filter.root_task_id,
                waits_still=task is not None and _waits_still(change, task),
            )
            if notice is Notice.MESSAGE:
                chosen.messages.append((change, self._link_to(change.task_id)))
            elif notice is Notice.SUMMARY:
                goal = one_line(task.spec.goal, _GOAL_CHARACTERS) if task is not None else ""
                chosen.late.append(LateChange(event_type_of(change), change.changed_at, change.task_id, goal))
        await _add_trees(connection, chosen.messages)
        return chosen

    def _link_to(self, task_id: str) -> dict[str, Any]:
        return {"console_url": f"{self.public_url.rstrip('/')}/console/#/tasks/{task_id}"} if self.public_url else {}


def event_type_of(change: RecordedChange) -> str:
    """Returns the event type of a change."""
    return event_of(TaskState(change.state), change.reason, cancel_requested=change.cancel_requested)


def _waits_still(change: RecordedChange, task: task_pb2.Task) -> bool:
    """Whether the task is in the wait that the change began or reminded of."""
    waits = task.state == task_pb2.TASK_STATE_WAITING_USER
    return waits and (not task.HasField("wait") or change.changed_at >= moment(task.wait.begin_time))


async def _add_trees(connection: Connection, messages: Sequence[tuple[RecordedChange, dict[str, Any]]]) -> None:
    """Adds to the end of each root how many of its sub-agents are in which state."""
    ends = {change.task_id: further for change, further in messages if change.state in TERMINAL}
    if not ends:
        return
    for root_task_id, state, count in await fetch_all(
        connection, WEBHOOKS.sub_agents_by_state, {"root_task_ids": sorted(ends)}
    ):
        ends[root_task_id].setdefault("sub_agents", {})[state] = count
