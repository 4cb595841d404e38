"""The filter of a list or a watch of tasks, from the arguments of `Client.tasks` and `Client.changes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Final, TypedDict, Unpack
from urllib.parse import unquote

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.states import TaskState
from tenure.domain.task import Source, SourceKind
from tenure.sdk.errors import invalid_argument
from tenure.sdk.option_values import Money, Seconds, agent_of_reference, duration_from_0, nano_usd_from_0
from tenure.sdk.submit_options import Option, only
from tenure.v1 import task_pb2
from tenure.wire.common import SOURCES, STATES, optional_timestamp

States = TaskState | str | Iterable[TaskState | str]


class TaskFilterOptions(TypedDict, total=False):
    """Of a list of tasks: all that are given must match."""

    state: Annotated[States | None, Option("one state, or several", "states")]
    labels: Annotated[Mapping[str, str] | None, Option("all of these labels", "labels")]
    queue: Annotated[str, Option("this queue", "queue")]
    source: Annotated[Source | None, Option("this source; with a run, this run of it", "source")]
    reason: Annotated[str | Iterable[str] | None, Option("of the state: one code, or several", "reasons")]
    agent: Annotated[str, Option('pinned to this agent, or to this revision of it: "support@7"', "agent")]
    text: Annotated[str, Option("all of these words, or words that begin so, in the goal and the results", "text")]
    since: Annotated[datetime | None, Option("submitted at this time or later", "created_since")]
    before: Annotated[datetime | None, Option("submitted before this time", "created_before")]
    ended_since: Annotated[datetime | None, Option("ended at this time or later", "ended_since")]
    ended_before: Annotated[datetime | None, Option("ended before this time", "ended_before")]
    model: Annotated[str, Option("the model of the newest model call", "model")]
    min_cost: Annotated[Money | None, Option("own model calls cost this much or more, in US dollars", "min_nano_usd")]
    max_cost: Annotated[Money | None, Option("own model calls cost at most this much, in US dollars", "max_nano_usd")]
    min_duration: Annotated[
        Seconds | None, Option("took this long or longer from the submit to the end, or until now", "min_duration")
    ]
    max_duration: Annotated[Seconds | None, Option("took at most this long", "max_duration")]
    root_task_id: Annotated[str, Option("in the tree of this task", "root_task_id")]
    forked_from_task_id: Annotated[str, Option("forks of this task", "forked_from_task_id")]
    output_kind: Annotated[str, Option("with an output of this kind", "output.kind")]
    output_uri: Annotated[str, Option("with an output whose URI begins so", "output.uri_prefix")]


RANGES: Final = (
    *("text", "model", "since", "before", "ended_since", "ended_before"),
    *("min_cost", "max_cost", "min_duration", "max_duration"),
)
"""The options of commands and of HTTP that are passed on as they are."""


def task_filter(*, task_ids: Iterable[str] = (), **wanted: Unpack[TaskFilterOptions]) -> task_pb2.TaskFilter:
    """Returns a filter of tasks. Raises InvalidRequest for an unknown state, and for times without a zone."""
    only(TaskFilterOptions, wanted)
    source, agent = wanted.get("source"), wanted.get("agent")
    state, reason = wanted.get("state") or (), wanted.get("reason") or ()
    of_source = None
    if source is not None:
        of_source = task_pb2.SourceFilter(
            kind=SOURCES.to_wire(source.kind), source_id=source.source_id, source_run_id=source.source_run_id
        )
    name, revision = agent_of_reference("agent", agent) if agent else ("", 0)
    output = (wanted.get("output_kind", ""), wanted.get("output_uri", ""))
    return task_pb2.TaskFilter(
        states=[state_of(each) for each in ((state,) if isinstance(state, str) else state)],
        labels=dict(wanted.get("labels") or {}),
        queue=wanted.get("queue", ""),
        source=of_source,
        root_task_id=wanted.get("root_task_id", ""),
        forked_from_task_id=wanted.get("forked_from_task_id", ""),
        reasons=(reason,) if isinstance(reason, str) else reason,
        agent=name,
        agent_revision=revision,
        created_since=_time("since", wanted.get("since")),
        created_before=_time("before", wanted.get("before")),
        ended_since=_time("ended_since", wanted.get("ended_since")),
        ended_before=_time("ended_before", wanted.get("ended_before")),
        task_ids=task_ids,
        text=wanted.get("text", ""),
        model=wanted.get("model", ""),
        min_nano_usd=_nano_usd("min_cost", wanted.get("min_cost")) or 0,
        max_nano_usd=_nano_usd("max_cost", wanted.get("max_cost")),
        min_duration=_duration("min_duration", wanted.get("min_duration")),
        max_duration=_duration("max_duration", wanted.get("max_duration")),
        output=task_pb2.OutputFilter(kind=output[0], uri_prefix=output[1]) if any(output) else None,
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


def _nano_usd(argument: str, given: Money | None) -> int | None:
    return None if given is None else nano_usd_from_0(argument, given)


def source_text(source: task_pb2.SourceFilter) -> str:
    """Returns the text that `source_of` reads."""
    kind = SOURCES.find(source.kind or task_pb2.SOURCE_KIND_MANUAL)
    name = str(source.kind) if kind is None else kind.value.lower()
    source_id = source.source_id.replace("%", "%25").replace("/", "%2F")
    return "/".join(filter(None, (name, source_id, source.source_run_id)))


def _duration(argument: str, given: Seconds | None) -> Duration | None:
    return None if given is None else duration_from_0(argument, given)


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
