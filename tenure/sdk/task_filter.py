"""The filter of a list or a watch of tasks, from the arguments of `Client.tasks` and `Client.changes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from urllib.parse import unquote

from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.states import TaskState
from tenure.domain.task import Source, SourceKind
from tenure.sdk.errors import invalid_argument
from tenure.sdk.option_values import agent_of_reference
from tenure.v1 import task_pb2
from tenure.wire.common import SOURCES, STATES, optional_timestamp

States = TaskState | str | Iterable[TaskState | str]


def task_filter(
    *,
    state: States = (),
    labels: Mapping[str, str] | None = None,
    queue: str = "",
    source: Source | None = None,
    root_task_id: str = "",
    forked_from_task_id: str = "",
    reason: str | Iterable[str] = (),
    agent: str = "",
    since: datetime | None = None,
    ended_since: datetime | None = None,
    task_ids: Iterable[str] = (),
) -> task_pb2.TaskFilter:
    """Returns a filter of tasks. Raises InvalidRequest for an unknown state, and for times without a zone."""
    wanted = None
    if source is not None:
        wanted = task_pb2.SourceFilter(
            kind=SOURCES.to_wire(source.kind), source_id=source.source_id, source_run_id=source.source_run_id
        )
    name, revision = agent_of_reference("agent", agent) if agent else ("", 0)
    return task_pb2.TaskFilter(
        states=[state_of(each) for each in ((state,) if isinstance(state, str) else state)],
        labels=dict(labels or {}),
        queue=queue,
        source=wanted,
        root_task_id=root_task_id,
        forked_from_task_id=forked_from_task_id,
        reasons=(reason,) if isinstance(reason, str) else reason,
        agent=name,
        agent_revision=revision,
        created_since=_time("since", since),
        ended_since=_time("ended_since", ended_since),
        task_ids=task_ids,
    )


def source_of(text: str) -> Source:
    """Returns the source that `KIND`, `KIND/ID` or `KIND/ID/RUN` names: `scheduler/nightly/2026-11-23`.

    A slash in the id is written as %2F, and a percent sign as %25; the run is taken as it is. Raises InvalidRequest.
    """
    kind, _, rest = text.partition("/")
    source_id, _, run = rest.partition("/")
    kinds = {one.lower(): one for one in SourceKind}
    if kind.lower() not in kinds or (run and not source_id):
        advice = f"write KIND, KIND/ID or KIND/ID/RUN; the kinds are {', '.join(kinds)}"
        raise invalid_argument("source", f"{text!r} is not a source; {advice}")
    return Source(kinds[kind.lower()], unquote(source_id), run)


def _time(argument: str, moment: datetime | None) -> Timestamp | None:
    if moment is not None and moment.tzinfo is None:
        raise invalid_argument(argument, "must have a time zone")
    return optional_timestamp(moment)


def state_of(state: TaskState | str) -> task_pb2.TaskState.ValueType:
    """Returns the state on the wire. Raises InvalidRequest for an unknown one."""
    try:
        return STATES.to_wire(TaskState(state.upper()))
    except ValueError:
        raise invalid_argument("state", f"must be one of {', '.join(TaskState)}, not {state!r}") from None
