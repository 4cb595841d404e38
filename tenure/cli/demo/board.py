"""The board: all that was observed so far. The screen shows it, and the promises are judged by it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from devstack.options import Layout
from tenure.cli.demo.judgement import Observed, Promise, count_effects, count_model_calls, effects_expected, judge
from tenure.domain.fencing import describe_epoch
from tenure.domain.repeated_effects import ALREADY_HAPPENED
from tenure.domain.states import TaskState, is_terminal
from tenure.v1 import ledger_pb2, token_pb2
from tenure.wire.common import STATES, moment

# Read from the task's ledger: its claim holders, their epochs, why each lost it, and what was committed.


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """One opened claim. `taken_for` is the reason for which the task was queued before."""

    worker_id: str
    epoch: int
    opened_at: datetime
    taken_for: str


def state_of(entry: ledger_pb2.Entry) -> TaskState | None:
    """Returns the state that a transition leads to, or None for another entry."""
    return STATES.to_domain(entry.body.transition.to_state) if entry.body.HasField("transition") else None


def holders(entries: Iterable[ledger_pb2.Entry]) -> list[ClaimHolder]:
    """Returns the claim holders in the order in which they opened the task."""
    holders: list[ClaimHolder] = []
    queued_for = ""
    for entry in entries:
        match state_of(entry):
            case TaskState.QUEUED:
                queued_for = entry.body.transition.reason
            case TaskState.RUNNING:
                holders.append(ClaimHolder(entry.actor, entry.epoch, moment(entry.record_time), queued_for))
    return holders


def answers_by_step(entries: Iterable[ledger_pb2.Entry]) -> Counter[int]:
    """Returns the number of committed model answers of each step. More than one means a repeated step."""
    return Counter(entry.step for entry in entries if entry.body.HasField("assistant_message"))


def call_of_line(entries: Iterable[ledger_pb2.Entry], line: str) -> ledger_pb2.Entry | None:
    """Returns the entry with the intent of the call that appends this line to an outside file, or None before it."""
    for entry in entries:
        if entry.body.HasField("tool_intent"):
            arguments = json.loads(entry.body.tool_intent.arguments_json)
            if arguments.get("line") == line:
                return entry
    return None


ROLES = "ABC"
"""The names of the workers, in the order in which they held the task: either idle worker may be the next."""


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """An event of the play. `alarm` marks a fault of the play or a refused write."""

    at: datetime
    text: str
    alarm: bool = False


@dataclass(slots=True)
class Board:
    """Written by the play, read by the screen. `changed` is set after each entry and each list of refused writes."""

    layout: Layout
    events: list[DemoEvent] = field(default_factory=list)
    entries: list[ledger_pb2.Entry] = field(default_factory=list)
    refused_by_ledger: list[token_pb2.RefusedWrite] = field(default_factory=list)
    refused_by_tools: list[token_pb2.RefusedWrite] = field(default_factory=list)
    task_id: str = ""
    others_ready: bool = False
    interrupted_call: str = ""
    submitted_at: datetime | None = None
    frozen_at: datetime | None = None
    killed_at: datetime | None = None
    interrupted_step: int = 0
    third_killed_at: datetime | None = None
    woken_at: datetime | None = None
    finished: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, text: str, *, at: datetime | None = None, alarm: bool = False) -> None:
        """Adds an event at the moment `at`, by default now."""
        self.events.append(DemoEvent(at or now(), text, alarm))

    def tell_set_up(self, what: str) -> None:
        """Adds a step of the stack's start. Its stop, after the submit, is not a part of the play."""
        if self.submitted_at is None:
            self.tell(what)

    def take_entry(self, entry: ledger_pb2.Entry) -> None:
        """Adds an entry of the task's ledger, and the event that it means."""
        self.entries.append(entry)
        state = state_of(entry)
        if state is TaskState.RUNNING:
            self._tell_opened(self.holders)
        elif state is not None and is_terminal(state):
            self.tell(f"{state}: {self.role(entry.actor)} closed the task out", at=moment(entry.record_time))
        elif entry.body.tool_outcome.call_id and entry.body.tool_outcome.call_id == self.interrupted_call:
            self._tell_joined(entry)
        elif entry.body.tool_outcome.outcome.detail == ALREADY_HAPPENED:
            call_id = entry.body.tool_outcome.call_id
            text = f"call {call_id} plans an effect again: it gets the recorded outcome, and the effect happens once"
            self.tell(text, at=moment(entry.record_time))
        elif self.interrupted_step and entry.step == self.interrupted_step and entry.body.HasField("assistant_message"):
            self._tell_joined_answer(entry)
        self.changed.set()

    def take_refusals(self, ledger: Sequence[token_pb2.RefusedWrite], tools: Sequence[token_pb2.RefusedWrite]) -> None:
        """Takes all refused writes so far, the newest first as the services list them, and adds events for new ones."""
        self._add_new_refusals("the tool service refuses", self.refused_by_tools, tools)
        self._add_new_refusals("the ledger refuses", self.refused_by_ledger, ledger)
        self.changed.set()

    @property
    def holders(self) -> list[ClaimHolder]:
        return holders(self.entries)

    @property
    def state(self) -> TaskState | None:
        """The state of the task by its ledger; None before the first entry."""
        states = [state for entry in self.entries if (state := state_of(entry)) is not None]
        return states[-1] if states else None

    @property
    def step(self) -> int:
        return max((entry.step for entry in self.entries), default=0)

    @property
    def result(self) -> str:
        """The result of the task, "" before its end."""
        return self.entries[-1].body.transition.result if self.entries else ""

    @property
    def resume_seconds_freeze(self) -> float | None:
        return self._until_next_holder(1, self.frozen_at)

    @property
    def resume_seconds_kill(self) -> float | None:
        return self._until_next_holder(2, self.killed_at)

    def role(self, worker_id: str) -> str:
        """Returns A, B or C by the order of the claims; the worker's id if it never held the task."""
        order = list(dict.fromkeys(holder.worker_id for holder in self.holders))
        known = worker_id in order and order.index(worker_id) < len(ROLES)
        return ROLES[order.index(worker_id)] if known else worker_id

    def observed(self) -> Observed:
        """Returns what the promises are judged by. Only refused writes of the first holder, which was frozen, count."""
        stale = self.holders[0].epoch if self.holders else 0
        return Observed(
            task_state=self.state or "",
            answers=answers_by_step(self.entries),
            takeovers=max(0, len(self.holders) - 1),
            effects=count_effects(self.layout.records),
            effects_expected=effects_expected(),
            stale_refused_ledger=sum(1 for refused in self.refused_by_ledger if refused.presented_epoch == stale),
            stale_refused_tools=sum(1 for refused in self.refused_by_tools if refused.presented_epoch == stale),
            model_calls=count_model_calls(self.layout.model_log),
            resume_seconds_kill=self.resume_seconds_kill,
            resume_seconds_freeze=self.resume_seconds_freeze,
        )

    def promises(self) -> tuple[Promise, ...]:
        return judge(self.observed())

    def _until_next_holder(self, index: int, since: datetime | None) -> float | None:
        """Returns the seconds from a signal to the Open of the next claim holder, or None without one."""
        if since is None or len(self.holders) <= index:
            return None
        return (self.holders[index].opened_at - since).total_seconds()

    def _tell_opened(self, all_holders: list[ClaimHolder]) -> None:
        newest, role = all_holders[-1], self.role(all_holders[-1].worker_id)
        epoch = describe_epoch(newest.epoch)
        if len(all_holders) == 1:
            return self.tell(f"{role} holds the task: epoch {epoch}", at=newest.opened_at)
        since = {
            2: ("freeze", self.resume_seconds_freeze),
            3: ("kill", self.resume_seconds_kill),
            4: ("kill", self._until_next_holder(3, self.third_killed_at)),
        }
        signal, seconds = since.get(len(all_holders), ("", None))
        after = "" if seconds is None else f", {seconds:.1f} s after the {signal}"
        return self.tell(f"{role} took over: epoch {epoch}, {newest.taken_for}{after}", at=newest.opened_at)

    def _add_new_refusals(
        self, who: str, known: list[token_pb2.RefusedWrite], listed: Sequence[token_pb2.RefusedWrite]
    ) -> None:
        new = list(reversed(listed[: len(listed) - len(known)]))
        known += new
        for method in dict.fromkeys(refused.method for refused in new):
            self._tell_refused(who, [refused for refused in new if refused.method == method])

    def _tell_joined(self, entry: ledger_pb2.Entry) -> None:
        attempts = entry.body.tool_outcome.outcome.call_attempt
        ran = "once" if attempts == 1 else f"{attempts} times"
        text = f"{self.role(entry.actor)} joined call {self.interrupted_call} and got its outcome: the call ran {ran}"
        self.tell(text, at=moment(entry.record_time))

    def _tell_joined_answer(self, entry: ledger_pb2.Entry) -> None:
        attempts = sum(1 for each in self.entries if each.step == entry.step and each.body.HasField("model_attempt"))
        times = "once" if attempts == 1 else f"{attempts} times"
        what = f"the model call of step {entry.step} and got its answer: the call was made {times}"
        self.tell(f"{self.role(entry.actor)} joined {what}", at=moment(entry.record_time))

    def _tell_refused(self, who: str, refused: list[token_pb2.RefusedWrite]) -> None:
        first, times = refused[0], f" ({len(refused)} x)" if len(refused) > 1 else ""
        epochs = f"epoch {describe_epoch(first.presented_epoch)}, the fence is at {describe_epoch(first.current_epoch)}"
        text = f"{who} {self.role(first.holder)}'s {first.method}{times}: {epochs}"
        self.tell(text, at=moment(first.refuse_time), alarm=True)


def empty_board(data_dir: Path) -> Board:
    """Returns a board without observations."""
    return Board(Layout(data_dir.resolve()))


def now() -> datetime:
    """Returns the wall-clock time, which compares to the ledger's times: all processes are on this machine."""
    return datetime.fromtimestamp(time.time(), UTC)
