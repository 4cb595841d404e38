"""What is said about a task while it is watched: each entry as settled lines.

A line here is a `Text` of one line. Only the result of a task is more: Markdown where somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from tenure.cli.entry_lines import (
    answer_text,
    describe,
    outcome_name,
    unknown_tools,
)
from tenure.cli.formatting import (
    arguments_text,
    clock,
    count_text,
    first_line,
    harmless,
    one_line,
    program_text,
    seconds_text,
    state_style,
    summary,
    usage_text,
)
from tenure.cli.tasks import result_of, result_shown
from tenure.cli.watch_state import WatchedTask
from tenure.domain.explain import TO_SETTLE
from tenure.domain.fencing import describe_epoch
from tenure.domain.states import Reason, TaskState
from tenure.v1 import ledger_pb2, live_pb2, task_pb2, tool_pb2
from tenure.wire.common import seconds, state_name

Lines = Iterator[RenderableType]

_LAST_WORDS: Final = frozenset({"end_turn", "stop_sequence", "refusal"})
_STOP_WORDS: Final = {"tool_use": "", "end_turn": " · final answer"}
_MARKS: Final = {"SUCCEEDED": ("✓", "green"), "IN_DOUBT": ("?", "yellow"), "NOT_RUN": ("·", "yellow")}
_FAILED_MARK: Final = ("✗", "red")


class Holder(NamedTuple):
    """Who held the task before an entry."""

    owner: str
    epoch: int


@dataclass(slots=True)
class Narrator:
    """`task` is what is known so far. `is_plain`: for a pipe, so lines are whole and calls are told when they begin."""

    task: WatchedTask
    console: Console
    is_plain: bool
    _held: str = ""
    _later: list[Text] = field(default_factory=list)

    def tell(self, entry: ledger_pb2.Entry) -> Lines:
        """Takes the entry in, and gives the lines that it is worth."""
        before = Holder(self.task.owner, self.task.epoch)
        attempt_before = self.task.attempt
        self.task.apply(entry)
        kind = entry.body.WhichOneof("body")
        if kind != "transition":
            yield from self._take_later()
        if kind not in {"assistant_message", "transition"}:
            yield from self._flush()
        match kind:
            case "transition":
                yield from self._transition(entry, before)
                yield from self._take_later()
            case "assistant_message":
                self.task.live.discard()
                if attempt_before is not None and attempt_before.summary_through_step:
                    yield from self._summary(entry.step, entry.body.assistant_message)
                else:
                    yield from self._answer(entry.step, entry.body.assistant_message)
            case "model_attempt" | "model_failure" | "attempt_lost":
                yield from self._attempt(entry)
            case "tool_intent" | "tool_outcome":
                yield from self._call(entry.body)
            case "control_step" | "control_failure":
                yield self._of_function(entry)
            case "tools_defined" if entry.body.tools_defined.unknown_names:
                yield self._line("  ! ", unknown_tools(entry.body.tools_defined), "yellow")
            case _:
                yield from self._from_others(entry)

    def _from_others(self, entry: ledger_pb2.Entry) -> Lines:
        """What the agent was told, and where the history comes from."""
        match entry.body.WhichOneof("body"):
            case "user_message":
                yield self._line("  » ", f"message: {entry.body.user_message.text}", "cyan")
            case "result_rejected":
                yield self._line("  ! ", f"the answer is no result: {describe(entry)}", "yellow")
            case "wait_resolution":
                yield self._line("  » ", f"{entry.actor}: {describe(entry)}", "cyan")
            case "cancel_request" | "operator_request":
                yield self._line("! ", _request_text(entry), "yellow")
            case "forked":
                yield self._line("", describe(entry), "dim")
            case "budget_warning":
                yield self._line("  ! ", describe(entry), "yellow")
            case "sub_agents_spawned":
                yield self._line("  ⑂ ", describe(entry), "cyan")
            case "compaction":
                yield self._line("  ≡ ", describe(entry), "dim")
            case "quota_warning":
                yield self._line("  ! ", describe(entry), "yellow")

    def tell_text(self, delta: live_pb2.Delta) -> Lines:
        """Takes a piece of live text in; a line only when it replaces text that was shown."""
        if self.task.live.apply(delta):
            yield self._discarded()

    def ending(self, task: task_pb2.Task) -> Lines:
        """How it ended, and its result."""
        state = state_name(task.state)
        mark = "✓" if state == TaskState.SUCCEEDED else "✗"
        takeovers = f" · {count_text(self.task.takeovers, 'takeover')}" if self.task.takeovers else ""
        reason = f" ({task.reason})" if task.reason and state != TaskState.SUCCEEDED else ""
        if self._held.strip() != task.result.strip():
            yield from self._flush()
        self._held = ""
        yield Text("")
        yield Text.assemble((f"{mark} {state}{reason}", f"bold {state_style(state)}"), f" · {summary(task)}{takeovers}")
        if task.message and state != TaskState.SUCCEEDED:
            yield from self._block(task.message, "")
        if task.result.strip():
            yield Text("")
            yield from self._result(task)

    def _result(self, task: task_pb2.Task) -> Lines:
        if self.is_plain:
            yield from self._block(result_of(task).strip(), "")
        else:
            yield result_shown(task, is_plain=False)

    def _transition(self, entry: ledger_pb2.Entry, before: Holder) -> Lines:
        fact, at = entry.body.transition, clock(entry.record_time)
        why = f" ({fact.reason})" if fact.reason else ""
        if self.task.ended:
            return
        yield from self._flush()
        if self.task.state is TaskState.RUNNING:
            yield self._line("", _taken(at, entry, before, self.task.step), "cyan")
        elif self.task.state is TaskState.QUEUED and not fact.from_state:
            yield self._line("", f"{at} queued", "dim")
        elif state_name(fact.from_state) == TaskState.RUNNING and self.task.state is TaskState.QUEUED:
            yield self._line("", f"{at} {before.owner} no longer holds the task{why}", "yellow")
            yield from self._block(fact.message, "yellow")
            if self.task.live.discard():
                yield self._discarded()
        else:
            until = f" until {clock(fact.next_retry_time)}" if fact.HasField("next_retry_time") else ""
            yield self._line("", f"{at} {self.task.state}{until}{why}", "yellow")
            yield from self._block(fact.message, "yellow")
            if fact.reason == Reason.TOOL_IN_DOUBT:
                yield self._line("  ", f"to settle it: {TO_SETTLE}", "yellow")

    def _attempt(self, entry: ledger_pb2.Entry) -> Lines:
        """Whatever begins or ends a model call without an answer makes the text shown so far void."""
        body, step = entry.body, f"step {entry.step}"
        if body.HasField("model_failure"):
            fact = body.model_failure
            code = f" {fact.status_code}" if fact.status_code else ""
            after = f", told to wait {seconds_text(seconds(fact.retry_after))}" if fact.HasField("retry_after") else ""
            yield self._line("  ✗ ", f"{step}: the model call failed, {fact.error_class}{code}{after}", "red")
            yield from self._block(fact.message, "red", indent=4)
        if self.task.live.discard():
            self._later.append(self._discarded())
        if not body.HasField("attempt_lost"):
            yield from self._take_later()
        if body.HasField("attempt_lost"):
            billed = usage_text(body.attempt_lost.usage)
            lost = f"{step}: the model call under way was lost, billed as {billed}"
            self._later.append(self._line("  ", lost, "yellow"))
        if body.HasField("model_attempt") and body.model_attempt.attempt_number > 1:
            again = f"{step}: the model is asked again, attempt {body.model_attempt.attempt_number}"
            yield self._line("  ", again, "dim")

    def _answer(self, step: int, fact: ledger_pb2.AssistantMessage) -> Lines:
        yield from self._flush()
        stop = _STOP_WORDS.get(fact.stop_reason, f" · {fact.stop_reason}")
        message = f"  {seconds_text(seconds(fact.latency))} · {usage_text(fact.usage)}{stop}"
        yield Text("")
        yield Text.assemble((f"Step {step}", "bold"), (message, "dim"))
        self._held = answer_text(fact.content_json)
        if fact.stop_reason not in _LAST_WORDS:
            yield from self._flush()

    def _of_function(self, entry: ledger_pb2.Entry) -> Text:
        """A step that it made, or why it broke off."""
        body = entry.body
        if body.HasField("control_failure"):
            return self._line("  ✗ ", f"the function failed: {describe(entry)}", "red")
        mark, style = _FAILED_MARK if body.control_step.HasField("failure") else _MARKS["SUCCEEDED"]
        return self._line(f"  {mark} ", f"step {entry.step}: {describe(entry)}", "default", mark_style=style)

    def _summary(self, step: int, fact: ledger_pb2.AssistantMessage) -> Lines:
        """No words of the agent's: what it says comes with the entry that follows."""
        yield from self._flush()
        message = f"  {seconds_text(seconds(fact.latency))} · {usage_text(fact.usage)} · a summary of the conversation"
        yield Text("")
        yield Text.assemble((f"Step {step}", "bold"), (message, "dim"))

    def _call(self, body: ledger_pb2.EntryBody) -> Lines:
        """On a terminal calls under way are drawn below, so a call is told once, with its outcome."""
        if body.HasField("tool_intent"):
            if self.is_plain:
                yield self._line("  → ", _call_text(body.tool_intent), "default")
            return
        outcome, status = body.tool_outcome.outcome, outcome_name(body.tool_outcome.outcome)
        mark, style = _MARKS.get(status, _FAILED_MARK)
        intent = self.task.intents.get(body.tool_outcome.call_id)
        call = _call_text(intent) if intent is not None else body.tool_outcome.call_id
        used = program_text(outcome.usage)
        tail = (
            f"{_status_text(outcome, status)}  {seconds_text(seconds(outcome.duration))}{f' · {used}' if used else ''}"
        )
        yield self._line(f"  {mark} ", call, "default", mark_style=style, tail=tail)
        if message := first_line(outcome.content, self._width - 6):
            yield self._line("    ", message, "dim")

    def _discarded(self) -> Text:
        return self._line("  ", "the unfinished text is discarded", "yellow")

    def _take_later(self) -> Lines:
        """What a loss brought with it: the ledger has it before the loss itself, people want it after."""
        later, self._later = self._later, []
        yield from later

    def _flush(self) -> Lines:
        """The last answer's words, which are kept back because they may be the result."""
        held, self._held = self._held, ""
        if held.strip():
            yield from self._block(held.strip(), "default")

    def _block(self, text: str, style: str, *, indent: int = 2) -> Lines:
        for source in harmless(text).splitlines():
            if self.is_plain:
                yield Text(f"{' ' * indent}{source}".rstrip(), style)
            else:
                for line in Text(source or " ", style).wrap(self.console, self._width - indent - 2):
                    line.rstrip()
                    yield Text.assemble(" " * indent, line)

    def _line(self, mark: str, text: str, style: str, *, mark_style: str = "", tail: str = "") -> Text:
        """One line: of the text as much as fits between its mark and its tail."""
        cut = one_line(text, max(20, self._width - len(mark) - len(tail)))
        return Text.assemble((mark, mark_style or style), (cut, style), (tail, "dim"))

    @property
    def _width(self) -> int:
        return self.console.width


def _taken(at: str, entry: ledger_pb2.Entry, before: Holder, step: int) -> str:
    if not before.epoch:
        return f"{at} {entry.actor} takes the task · epoch {describe_epoch(entry.epoch)}"
    who = "goes on" if entry.actor == before.owner else f"goes on for {before.owner}"
    epochs = f"epoch {describe_epoch(before.epoch)} → {describe_epoch(entry.epoch)}"
    return f"{at} {entry.actor} {who} at step {step} · {epochs}"


def _request_text(entry: ledger_pb2.Entry) -> str:
    """What somebody wants of the task, and who."""
    if entry.body.HasField("operator_request"):
        return f"{entry.actor} {describe(entry)}"
    reason = entry.body.cancel_request.reason
    return f"{entry.actor} asks for the end{f': {reason}' if reason else ''}"


def _call_text(intent: ledger_pb2.ToolIntent) -> str:
    return f"{intent.tool} {arguments_text(intent.arguments_json)}"


def _status_text(outcome: tool_pb2.Outcome, status: str) -> str:
    if status == "SUCCEEDED":
        return ""
    return f"  {status}{f' ({outcome.detail})' if outcome.detail else ''}"
