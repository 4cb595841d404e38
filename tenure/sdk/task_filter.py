"""The filter of a list or a watch of tasks, from the arguments of `Client.tasks` and `Client.changes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenure.domain.states import TaskState
from tenure.domain.task import Source
from tenure.sdk.errors import invalid_argument
from tenure.v1 import task_pb2
from tenure.wire.common import SOURCES, STATES

States = TaskState | str | Iterable[TaskState | str]


def task_filter(
    state: States,
    labels: Mapping[str, str] | None,
    queue: str,
    source: Source | None,
    root_task_id: str,
    forked_from_task_id: str,
) -> task_pb2.TaskFilter:
    """Returns a filter of tasks. Raises InvalidRequest for an unknown state."""
    wanted = None
    if source is not None:
        wanted = task_pb2.SourceFilter(
            kind=SOURCES.to_wire(source.kind), source_id=source.source_id, source_run_id=source.source_run_id
        )
    return task_pb2.TaskFilter(
        states=[state_of(each) for each in ((state,) if isinstance(state, str) else state)],
        labels=dict(labels or {}),
        queue=queue,
        source=wanted,
        root_task_id=root_task_id,
        forked_from_task_id=forked_from_task_id,
    )


def state_of(state: TaskState | str) -> task_pb2.TaskState.ValueType:
    """Returns the state on the wire. Raises InvalidRequest for an unknown one."""
    try:
        return STATES.to_wire(TaskState(state.upper()))
    except ValueError:
        raise invalid_argument("state", f"must be one of {', '.join(TaskState)}, not {state!r}") from None
