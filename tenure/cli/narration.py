"""Turns the entries of a watched task into settled lines, for `tenure watch`.

A line is a `Text` of one line, except the result of a task: on a terminal it is Markdown of several lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from tenure.cli.entry_lines import answer_text, describe, lease_end_text, outcome_name, unknown_tools
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
    tree_cost,
    usage_text,
)
from tenure.cli.tasks import result_of, result_shown
from tenure.cli.watch_state import WatchedTask
from tenure.domain.fencing import describe_epoch
from tenure.domain.in_doubt import RESOLVE_COMMANDS
from tenure.domain.states import Reason, TaskState
from tenure.v1 import ledger_pb2, live_pb2, task_pb2, tool_pb2
from tenure.wire.common import seconds, state_name

Lines = Iterator[RenderableType]

_FINAL_STOP_REASONS: Final = frozenset({"end_turn", "stop_sequence", "refusal"})
_STOP_REASON_TEXTS: Final = {"tool_use": "", "end_turn": " · final answer"}
_MARKS: Final = {"SUCCEEDED": ("✓", "green"), "IN_DOUBT": ("?", "yellow"), "NOT_RUN": ("·", "yellow")}
_FAILED_MARK: Final = ("✗", "red")


class Holder(NamedTuple):
    """The owner of the task, and the epoch of its claim, before an entry."""

    owner: str
    epoch: int


@dataclass(slots=True)
class Narrator:
    """Makes lines from entries, and keeps the state of the watched task in `task`.

    `is_plain` is for output without a terminal: lines are not cut, and a call gets a line when it begins. `is_verbose`
    shows the epochs of the claims.

    `_answered_step` is the step of a function's newest model call, and `_headed_step` the newest step with a heading.
    `_held` is the last answer, which is held back
    because it may be the result: the result is printed once, at the end. `_later` are lines about a lost model call.
    The ledger records the loss of the model call before the loss of the claim; the lines are printed after the loss of
    the claim.
    """

    task: WatchedTask
    console: Console
    is_plain: bool
    is_verbose: bool = False
    _held: str = ""
    _answered_step: int = 0
    _headed_step: int = 0
    _later: list[Text] = field(default_factory=list)

    def tell(self, entry: ledger_pb2.Entry) -> Lines:
        """Applies the entry to `task` and yields its lines; none for a kind that is not shown."""
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
                yield from self._call(entry)
            case "control_step" | "control_failure":
                yield from self._function_step(entry)
            case "tools_defined" if entry.body.tools_defined.unknown_names:
                yield self._line("  ! ", unknown_tools(entry.body.tools_defined), "yellow")
            case _:
                yield from self._other(entry)

    def _other(self, entry: ledger_pb2.Entry) -> Lines:
        """Yields the line of an entry that is neither a transition nor a part of a step."""
        match entry.body.WhichOneof("body"):
            case "user_message":
                message = entry.body.user_message
                kind = "interrupting message" if message.interrupt else "message"
                yield self._line("  » ", f"{kind}: {message.text}", "cyan")
            case "result_rejected":
                yield self._line("  ! ", f"the answer does not fit the result schema: {describe(entry)}", "yellow")
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
        """Adds a delta to the live text. Yields a line only if the delta replaces text that was shown."""
        if self.task.live.apply(delta):
            yield self._discarded()

    def ending(self, task: task_pb2.Task) -> Lines:
        """Yields the lines of the end of the task: the terminal state, its message and the result."""
        state = state_name(task.state)
        mark = "✓" if state == TaskState.SUCCEEDED else "✗"
        takeovers = f" · {count_text(self.task.takeovers, 'takeover')}" if self.task.takeovers else ""
        reason = f" ({task.reason})" if task.reason and state != TaskState.SUCCEEDED else ""
        if self._held.strip() != result_of(task).strip():
            yield from self._flush()
        self._held = ""
        yield Text("")
        yield Text.assemble((f"{mark} {state}{reason}", f"bold {state_style(state)}"), f" · {summary(task)}{takeovers}")
        if tree := tree_cost(task):
            yield self._line("  ", tree, "")
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
        transition, at = entry.body.transition, clock(entry.record_time)
        reason = f" ({transition.reason})" if transition.reason else ""
        if self.task.ended:
            return
        yield from self._flush()
        if self.task.state is TaskState.RUNNING:
            yield self._line("", self._opened_text(at, entry, before), "cyan")
        elif self.task.state is TaskState.QUEUED and not transition.from_state:
            yield self._line("", f"{at} queued", "dim")
        elif state_name(transition.from_state) == TaskState.RUNNING and self.task.state is TaskState.QUEUED:
            yield self._line("", f"{at} {before.owner} no longer holds the task{reason}", "yellow")
            yield from self._block(transition.message, "yellow")
            if self.is_verbose and transition.HasField("lease_end"):
                yield from self._block(lease_end_text(transition), "yellow")
            outlives = self.task.attempt is not None and self.task.attempt.outlives_worker
            if not outlives and self.task.live.discard():
                yield self._discarded()
        else:
            until = f" until {clock(transition.next_retry_time)}" if transition.HasField("next_retry_time") else ""
            yield self._line("", f"{at} {self.task.state}{until}{reason}", "yellow")
            yield from self._block(transition.message, "yellow")
            if transition.reason == Reason.TOOL_IN_DOUBT:
                yield self._line("  ", f"to resolve it: {RESOLVE_COMMANDS}", "yellow")

    def _attempt(self, entry: ledger_pb2.Entry) -> Lines:
        """Yields the lines of a model attempt, a failed one or a lost one. Each of them discards the live text."""
        body, step = entry.body, f"step {entry.step}"
        if body.HasField("model_failure"):
            failure = body.model_failure
            code = f" {failure.status_code}" if failure.status_code else ""
            retry = (
                f", retry after {seconds_text(seconds(failure.retry_after))}" if failure.HasField("retry_after") else ""
            )
            yield self._line("  ✗ ", f"{step}: the model call failed, {failure.error_class}{code}{retry}", "red")
            yield from self._block(failure.message, "red", indent=4)
            if failure.refused_tools:
                left_out = f"without {', '.join(failure.refused_tools)}: the task goes on without these tools"
                yield self._line("  ! ", left_out, "yellow")
        if self.task.live.discard():
            self._later.append(self._discarded())
        if not body.HasField("attempt_lost"):
            yield from self._take_later()
        if body.HasField("attempt_lost"):
            billed = usage_text(body.attempt_lost.usage)
            lost = f"{step}: the model call in flight was lost, billed as {billed}"
            self._later.append(self._line("  ", lost, "yellow"))
        if body.HasField("model_attempt") and body.model_attempt.attempt_number > 1:
            attempt = f"{step}: the model call is repeated, attempt {body.model_attempt.attempt_number}"
            yield self._line("  ", attempt, "dim")

    def _answer(self, step: int, answer: ledger_pb2.AssistantMessage) -> Lines:
        yield from self._flush()
        stop = _STOP_REASON_TEXTS.get(answer.stop_reason, f" · {answer.stop_reason}")
        if self.task.runs_function and answer.stop_reason == "end_turn":  # the function says what is final
            stop = ""
        yield from self._heading(step, f"  {seconds_text(seconds(answer.latency))} · {usage_text(answer.usage)}{stop}")
        self._held = answer_text(answer.content_json)
        self._answered_step = step if self.task.runs_function else 0
        if answer.stop_reason not in _FINAL_STOP_REASONS:
            yield from self._flush()

    def _function_step(self, entry: ledger_pb2.Entry) -> Lines:
        """Yields the line of a control function's step, or of its failure.

        The recorded result of a model call, whose answer has its lines, needs `is_verbose`.
        """
        body = entry.body
        if body.HasField("control_failure"):
            yield self._line("  ✗ ", f"the function failed: {describe(entry)}", "red")
        elif entry.step != self._answered_step or self.is_verbose:
            mark, style = _FAILED_MARK if body.control_step.HasField("failure") else _MARKS["SUCCEEDED"]
            yield self._line(f"  {mark} ", f"step {entry.step}: {describe(entry)}", "default", mark_style=style)

    def _summary(self, step: int, answer: ledger_pb2.AssistantMessage) -> Lines:
        """Yields the line of a summary call. The next entry, the compaction, has the text of the summary."""
        yield from self._flush()
        message = (
            f"  {seconds_text(seconds(answer.latency))} · {usage_text(answer.usage)} · a summary of the conversation"
        )
        yield from self._heading(step, message)

    def _heading(self, step: int, message: str) -> Lines:
        self._headed_step = step
        yield Text("")
        yield Text.assemble((f"Step {step}", "bold"), (message, "dim"))

    def _call(self, entry: ledger_pb2.Entry) -> Lines:
        """Yields the lines of a call. On a terminal a call gets its line at its outcome: open calls are drawn below."""
        body = entry.body
        if self.task.runs_function and entry.step > self._headed_step:  # elsewhere calls are a part of an answer's step
            yield from self._heading(entry.step, "")
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
        if outcome.note:
            yield self._line("    ", first_line(outcome.note, self._width - 6), "yellow")

    def _discarded(self) -> Text:
        return self._line("  ", "the unfinished text is discarded", "yellow")

    def _take_later(self) -> Lines:
        """Yields the lines about a lost model call that were held until the line of the lost claim."""
        later, self._later = self._later, []
        yield from later

    def _flush(self) -> Lines:
        """Yields the answer that was held back, because it turned out not to be the result."""
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
        """Returns one line. The text is cut to the width between its mark and its tail."""
        cut = one_line(text, max(20, self._width - len(mark) - len(tail)))
        return Text.assemble((mark, mark_style or style), (cut, style), (tail, "dim"))

    def _opened_text(self, at: str, entry: ledger_pb2.Entry, before: Holder) -> str:
        epoch = describe_epoch(entry.epoch)
        if not before.epoch:
            return f"{at} {entry.actor} takes the task{f' · epoch {epoch}' if self.is_verbose else ''}"
        how = "takes the task again" if entry.actor == before.owner else f"takes over from {before.owner}"
        epochs = f" · epoch {describe_epoch(before.epoch)} → {epoch}" if self.is_verbose else ""
        return f"{at} {entry.actor} {how} at step {self.task.step or 1}{epochs}"

    @property
    def _width(self) -> int:
        return self.console.width


def _request_text(entry: ledger_pb2.Entry) -> str:
    """Returns the request of a user or an operator, with its actor."""
    if entry.body.HasField("operator_request"):
        return f"{entry.actor} {describe(entry)}"
    reason = entry.body.cancel_request.reason
    return f"{entry.actor} cancels the task{f': {reason}' if reason else ''}"


def _call_text(intent: ledger_pb2.ToolIntent) -> str:
    return f"{intent.tool} {arguments_text(intent.arguments_json)}"


def _status_text(outcome: tool_pb2.Outcome, status: str) -> str:
    if status == "SUCCEEDED":
        return ""
    return f"  {status}{f' ({outcome.detail})' if outcome.detail else ''}"
