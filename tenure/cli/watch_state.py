"""The state of a watched task: the fold of its entries so far, and the live text of the model call in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tenure.domain.budget import cost
from tenure.domain.states import TaskState, is_terminal
from tenure.sdk.live_text import LiveTextFilter
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.wire.common import STATES, unix_seconds
from tenure.wire.task import prices_to_domain, usage_to_domain

MAX_TEXT: Final = 64 * 1024
"""How many characters of live text are kept, counted from its end: more than any screen shows."""


class OpenCall(NamedTuple):
    """A tool call with an intent and without an outcome. `since` is the intent's record time, in Unix seconds."""

    intent: ledger_pb2.ToolIntent
    since: float


@dataclass(slots=True)
class LiveTextView:
    """The live text of one model attempt. A delta of a later attempt replaces it."""

    text: str = ""
    _call: tuple[int, int] = (0, 0)
    _block: int = 0
    _pieces: LiveTextFilter = field(default_factory=LiveTextFilter)

    def apply(self, delta: live_pb2.Delta) -> bool:
        """Adds a delta. Returns whether the delta replaced text of an earlier attempt."""
        piece = self._pieces.event(delta)
        if piece is None:
            return False
        call = (delta.step, delta.attempt_number)
        replaces_text = call != self._call and bool(self.text)
        if call != self._call:
            self._call, self._block, self.text = call, 0, ""
        paragraph = "\n\n" if piece.block > self._block and self.text else ""
        gap = "…" if piece.skipped else ""  # deltas are dropped for slow readers
        self.text = f"{self.text}{paragraph}{gap}{piece.text}"[-MAX_TEXT:]
        self._block = piece.block
        return replaces_text

    def discard(self) -> bool:
        """Drops the text. Returns whether there was any."""
        had_text, self.text = bool(self.text), ""
        return had_text


@dataclass(slots=True)
class WatchedTask:
    """The state of the task after the entries so far. Times are Unix seconds, 0.0 before the first.

    `runs_function`: a control function runs the task. `takeovers` counts the claims that followed a lost claim.
    `asked_at` is when the open model attempt began.
    """

    state: TaskState = TaskState.QUEUED
    step: int = 0
    epoch: int = 0
    owner: str = ""
    takeovers: int = 0
    sequence: int = 0
    attempt: ledger_pb2.ModelAttempt | None = None
    asked_at: float = 0.0
    changed_at: float = 0.0
    calls: dict[str, OpenCall] = field(default_factory=dict)
    intents: dict[str, ledger_pb2.ToolIntent] = field(default_factory=dict)
    live: LiveTextView = field(default_factory=LiveTextView)
    budget: task_pb2.BudgetStatus | None = None
    runs_function: bool = False
    _was_lost: bool = False

    @property
    def ended(self) -> bool:
        return is_terminal(self.state)

    def apply(self, entry: ledger_pb2.Entry) -> None:
        """Applies the next entry. An entry of an unknown kind changes nothing but the sequence and the step."""
        self.sequence, self.step = entry.sequence, max(self.step, entry.step)
        body = entry.body
        match body.WhichOneof("body"):
            case "submitted":
                self.runs_function = body.submitted.spec.HasField("control")
            case "transition":
                self._transition(entry)
            case "model_attempt":
                self.attempt, self.asked_at = body.model_attempt, unix_seconds(entry.record_time)
                # A fork copies entries without an epoch: their budget is another task's.
                if entry.epoch and body.model_attempt.HasField("budget"):
                    self.budget = body.model_attempt.budget
            case "budget_warning":
                self.budget = body.budget_warning.budget
            case "assistant_message":
                self._settle(body.assistant_message.usage)
            case "model_failure" | "attempt_lost":
                self.attempt = None
            case "tool_intent":
                self.calls[body.tool_intent.call_id] = OpenCall(body.tool_intent, unix_seconds(entry.record_time))
                self.intents[body.tool_intent.call_id] = body.tool_intent
            case "tool_outcome":
                self.calls.pop(body.tool_outcome.call_id, None)

    def _settle(self, usage: task_pb2.TokenUsage) -> None:
        """Adds an answer to the budget, as the ledger did with its commit: no entry tells the budget after it."""
        attempt, self.attempt = self.attempt, None
        if attempt is None or self.budget is None or not attempt.HasField("budget"):
            return
        used, prices = usage_to_domain(usage), prices_to_domain(attempt.prices)
        budget = task_pb2.BudgetStatus()
        budget.CopyFrom(self.budget)
        budget.used_tokens += used.total
        budget.reserved_tokens = max(0, budget.reserved_tokens - attempt.reserved_tokens)
        budget.used_nano_usd += cost(prices, used)
        budget.unpriced_calls += prices is None
        budget.reserved_nano_usd = max(0, budget.reserved_nano_usd - attempt.reserved_nano_usd)
        self.budget = budget

    def _transition(self, entry: ledger_pb2.Entry) -> None:
        before, self.state = self.state, STATES.to_domain(entry.body.transition.to_state)
        self.changed_at = unix_seconds(entry.record_time)
        if entry.body.transition.HasField("budget"):
            self.budget = entry.body.transition.budget
        if self.state is TaskState.RUNNING:
            self.takeovers += self._was_lost
            self.owner, self.epoch = entry.actor, entry.epoch
            self._was_lost = False
        elif before is TaskState.RUNNING:
            self._was_lost = self.state is TaskState.QUEUED
