"""What the sub-agents of a watched task need from people: their waits, warnings and failures, a line each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final

from rich.text import Text

from tenure.cli.follow import describe
from tenure.cli.formatting import short_id, state_style
from tenure.client import Client
from tenure.domain.errors import TenureError
from tenure.domain.states import Reason
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import task_pb2
from tenure.wire.common import state_name

_TOLD_STATES: Final = frozenset(
    {
        task_pb2.TASK_STATE_WAITING_USER,
        task_pb2.TASK_STATE_RETRY_SCHEDULED,
        task_pb2.TASK_STATE_FAILED,
        task_pb2.TASK_STATE_TIMED_OUT,
        task_pb2.TASK_STATE_COST_EXCEEDED,
    }
)
_TOLD_REASONS: Final = frozenset({Reason.BUDGET_WARNING, Reason.QUOTA_WARNING, Reason.WAIT_ESCALATED})


async def tell_of_sub_agents(client: Client, root_task_id: str, say: Callable[[Text], None]) -> None:
    """Says what the other tasks of a tree need, until it is cancelled. First those that wait for a person already."""
    tree = task_pb2.TaskFilter(root_task_id=root_task_id)
    waiting = task_pb2.TaskFilter(root_task_id=root_task_id, states=[task_pb2.TASK_STATE_WAITING_USER])
    has_listed = False
    with suppress(TenureError, PeerFailed):  # the watch of the root says what is away; these lines only help
        async with aclosing(client.watch_tasks(tree)) as events:
            async for event in events:
                if event.HasField("change") and event.change.task_id != root_task_id and _is_told(event.change):
                    say(_line(event.change))
                if not has_listed:  # the stream has begun, so no change is missed
                    has_listed = True
                    async for task in client.list_tasks(waiting):
                        if task.task_id != root_task_id:
                            say(_line(_present(task)))


def _is_told(change: task_pb2.TaskChange) -> bool:
    return change.reason in _TOLD_REASONS or (change.state in _TOLD_STATES and not change.cancel_requested)


def _present(task: task_pb2.Task) -> task_pb2.TaskChange:
    """Returns the task's present state as a change."""
    return task_pb2.TaskChange(
        task_id=task.task_id, state=task.state, reason=task.reason, sequence=task.sequence, task=task
    )


def _line(change: task_pb2.TaskChange) -> Text:
    state = state_name(change.state)
    head = f"  sub-agent {short_id(change.task_id)}  "
    return Text.assemble((head, "dim"), (state, state_style(state)), f"  {describe(change)}")
