"""Checks of stops: nothing that a stop covers begins between its answer and its end (I43)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from checker.check import SumCheck, Violation
from checker.history import CallRecord, StopRecord, TaskHistory
from checker.reading import TIME_GRAIN_SECONDS, of_kind, own, place
from tenure.domain.entries import ModelAttempt, Submitted
from tenure.domain.tools import CallState


@dataclass(frozen=True, slots=True)
class _Begun:
    """What began in a task, at a time of the store that recorded it. `tool`: of a call; "": a reservation."""

    at: float
    says: str
    tool: str = ""


@dataclass(frozen=True, slots=True)
class _Task:
    """What stops compare of a task, and what began in it."""

    task_id: str
    tenant: str
    queue: str
    slack_seconds: float
    begun: tuple[_Begun, ...]


class _NothingBegins:
    """I43, for calls and for reservations of model calls."""

    def __init__(self) -> None:
        self._stops: list[StopRecord] = []
        self._tasks: list[_Task] = []

    def add(self, task: TaskHistory) -> None:
        self._stops += task.stops
        submitted = next(of_kind(task.entries, Submitted), None)
        if task.row is None or submitted is None:
            return
        begun = [
            _Begun(entry.recorded_at, f"{place(entry)} reserves a model call,")
            for entry, _ in of_kind(own(task.entries), ModelAttempt)
        ]
        begun += [one for call in task.calls for one in _begun_of(call)]
        queue, slack_seconds = submitted[1].spec.queue, task.clock_slack_seconds + TIME_GRAIN_SECONDS
        self._tasks.append(_Task(task.task_id, task.row.tenant, queue, slack_seconds, tuple(begun)))

    def violations(self) -> Iterator[Violation]:
        for task in self._tasks:
            for stop in self._stops:
                if stop.tenant in {"", task.tenant} and stop.queue in {"", task.queue}:
                    yield from _late(stop, task)


def _begun_of(call: CallRecord) -> Iterator[_Begun]:
    """A call that was answered without a run began nothing."""
    if call.started_at is not None:
        yield _Begun(call.started_at, f"call {call.call_id} was started", call.tool)
    if call.started_at is not None or call.state in {CallState.ACCEPTED, CallState.NOT_RUN}:
        yield _Begun(call.accepted_at, f"call {call.call_id} was accepted", call.tool)


def _late(stop: StopRecord, task: _Task) -> Iterator[Violation]:
    from_time = stop.answered_at + task.slack_seconds
    until = stop.ended_at - task.slack_seconds if stop.ended_at is not None else float("inf")
    for one in task.begun:
        is_covered = not stop.tool or (one.tool and fnmatchcase(one.tool, stop.tool))
        if is_covered and from_time < one.at < until:
            later = one.at - stop.answered_at
            yield Violation("I43", task.task_id, f"{one.says} {later:.3f} s after the answer to a stop of {stop}")


CHECKS: Final = (
    SumCheck("I43", "nothing begins after the answer to a stop", ("calls", "entries", "stops"), _NothingBegins),
)
