"""What a task's ledger tells: who held it, under which epoch, how it was lost, and what was committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tenure.domain.states import TaskState
from tenure.v1 import ledger_pb2
from tenure.wire.enums import STATES
from tenure.wire.times import moment


@dataclass(frozen=True, slots=True)
class Holder:
    """One claim that was opened. `taken_for`: why the task was free to be taken."""

    worker_id: str
    epoch: int
    opened_at: datetime
    taken_for: str


def state_of(entry: ledger_pb2.Entry) -> TaskState | None:
    """The state this entry moves the task to, if it does."""
    return STATES.to_domain(entry.body.transition.to_state) if entry.body.HasField("transition") else None


def holders(entries: Iterable[ledger_pb2.Entry]) -> list[Holder]:
    """In the order in which they opened the task."""
    found: list[Holder] = []
    queued_for = ""
    for entry in entries:
        match state_of(entry):
            case TaskState.QUEUED:
                queued_for = entry.body.transition.reason
            case TaskState.RUNNING:
                found.append(Holder(entry.actor, entry.epoch, moment(entry.record_time), queued_for))
    return found


def answers_by_step(entries: Iterable[ledger_pb2.Entry]) -> Counter[int]:
    """How often an answer of the model was committed for each step; more than once would be a repeated step."""
    return Counter(entry.step for entry in entries if entry.body.HasField("assistant_message"))


def call_of_line(entries: Iterable[ledger_pb2.Entry], line: str) -> ledger_pb2.Entry | None:
    """The intent of the call that appends this line to an outside file, once it is committed."""
    for entry in entries:
        if entry.body.HasField("tool_intent"):
            arguments = json.loads(entry.body.tool_intent.arguments_json)
            if arguments.get("line") == line:
                return entry
    return None
