"""What the record of a run gives to a replay, and where a replay differs from the recorded run.

The record is the ledger of the run. A call is known by its tool and its arguments, so another model may make the calls
in another order. A person's message is read at the step at which the recorded run read it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from tenure.domain.control import INTERRUPTED, MESSAGES
from tenure.domain.entries import (
    AssistantMessage,
    ControlFailure,
    ControlStep,
    Entry,
    ModelAttempt,
    Submitted,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
    UserMessage,
    WaitResolution,
)
from tenure.domain.errors import WrongState
from tenure.domain.fold import ResumePoint, text_of_approval
from tenure.domain.next_action import CallModel, NextAction
from tenure.domain.progress import CallKey, call_key
from tenure.domain.states import TERMINAL
from tenure.domain.task import REPLAY_LOOP
from tenure.domain.tools import UNUSABLE_CALL, Outcome, OutcomeStatus

NOT_RECORDED_MARK: Final = "[not recorded]"
NOT_RECORDED: Final = (
    f"{NOT_RECORDED_MARK} This is a replay, and the recorded run did not make this call with these arguments. It was "
    "not executed."
)
_SHOWN_CHARACTERS: Final = 200


def check_no_replay(loop: str, advice: str) -> None:
    """Raises WrongState (IS_REPLAY) for a replay, which has no effects, and whose worker ends with it."""
    if loop == REPLAY_LOOP:
        raise WrongState(f"the task is a replay, whose calls are answered from a record: {advice}", reason="IS_REPLAY")


class RecordedRun:
    """The tools, the calls and the messages of a recorded run.

    Repeats of a call get the recorded outcomes in their order, and the last one again after them. A call that waited
    for a person, an event or sub-agents has the outcome that ended its wait.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.tools = ToolsDefined(())
        self._calls: dict[CallKey, list[Outcome]] = defaultdict(list)
        self._messages: dict[int, list[UserMessage]] = defaultdict(list)
        intents: dict[str, ToolIntent] = {}
        approvals: dict[str, str] = {}
        unread: list[UserMessage] = []
        for entry in entries:
            match entry.body:
                case ToolsDefined():
                    self.tools = entry.body
                case ToolIntent(call_id=call_id):
                    intents[call_id] = entry.body
                case WaitResolution(call_id=call_id) if call_id in intents:
                    approvals[call_id] = text_of_approval(entry.body, intents[call_id])
                case ToolOutcome(outcome=Outcome(detail=detail)) if detail == UNUSABLE_CALL:
                    pass  # the replay's worker settles such a call itself
                case ToolOutcome(call_id=call_id, outcome=outcome) if call_id in intents:
                    note = outcome.note or approvals.pop(call_id, "")  # older records have it as a text of its own
                    self._calls[call_key(intents[call_id])].append(replace(outcome, note=note))
                case UserMessage() if entry.body.request_id:  # the worker's own have none
                    unread.append(entry.body)
                case ModelAttempt(summary_through_step=0) if unread:
                    self._messages[entry.step] += unread
                    unread = []

    def outcome(self, intent: ToolIntent, repeat: int, *, is_own: bool = False) -> Outcome:
        """Returns the recorded outcome of the call. `repeat`: how often the same call was made before, from 0.

        `is_own`: of an own tool, whose large result is a file of the record.
        """
        recorded = self._calls.get(call_key(intent))
        if not recorded:
            return Outcome(OutcomeStatus.FAILED, NOT_RECORDED)
        outcome = recorded[min(repeat, len(recorded) - 1)]
        path = outcome.output_path if is_own else ""  # no file is in the workspace of the replay
        return replace(outcome, output=None, output_path=path, call_attempt=0)

    def messages_at(self, step: int) -> Sequence[UserMessage]:
        """Returns the messages of people that the recorded run read first at this step."""
        return self._messages.get(step, ())


def messages_due(run: RecordedRun, point: ResumePoint, action: NextAction) -> list[UserMessage]:
    """Returns the recorded messages that the ledger of a replay needs before its next action.

    They are those that the model reads in its next new step. A final answer is not final while there are any, as in the
    recorded run. None is due twice: a message in the ledger is in the content of the next model call.
    """
    match action:
        case CallModel(step=step) if step <= point.step:  # another attempt: it has the messages of the first one
            return []
        case _:
            due = run.messages_at(point.step + 1)
    unread = [block.get("text") for block in point.pending_content]
    missing = []
    for message in due:
        if message.text in unread:
            unread.remove(message.text)
        else:
            missing.append(message)
    return missing


# The comparison of a replay with the recorded run.


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step of a kind at which a replay differs. `step`: the replay's; of a step that it lacks: the record's.

    `expected`: what the recorded run did or read there. `got`: what the replay did instead.
    """

    step: int
    expected: str
    got: str

    def __str__(self) -> str:
        return f"step {self.step}: expected {self.expected}; got {self.got}"


@dataclass(slots=True)
class _Turn:
    """One step of an agent: the messages that its model call read, and the calls of the answer.

    Of code: one step, model call or group of tool calls. `name`: of the first two.
    """

    step: int
    messages: list[str]
    calls: list[CallKey] = field(default_factory=list)
    is_answered: bool = False
    name: str = ""

    @property
    def answer(self) -> str:
        if self.name:
            return f"the step {_shortened(self.name)}{'' if self.is_answered else ', which failed'}"
        if not self.is_answered:
            return "no answer of the model"
        return (
            f"the call{'s' * (len(self.calls) > 1)} {_listed(self.calls)}" if self.calls else "an answer without calls"
        )

    def answers_as(self, other: _Turn) -> bool:
        """Whether both take the same course from here."""
        is_same = (self.is_answered, self.name) == (other.is_answered, other.name)
        return is_same and Counter(self.calls) == Counter(other.calls)


@dataclass(slots=True)
class _Course:
    """The turns of a run, and how it ended. `end` "": it has not ended."""

    turns: list[_Turn] = field(default_factory=list)
    end: str = ""
    last_step: int = 0

    def begin(self, step: int, messages: Sequence[str]) -> None:
        """Begins the turn of a step, or continues it, with messages that it reads."""
        if not self.turns or self.turns[-1].step != step:
            self.turns.append(_Turn(step, []))
        self.turns[-1].messages += messages


def divergences(recorded: Iterable[Entry], replayed: Iterable[Entry]) -> list[Divergence]:
    """Returns where a replay differs from the recorded run, in the order of the steps; none: it took the same course.

    Compares turn by turn the messages that the model read and the calls that it made, and then how the run ended. Texts
    of answers may differ. Of code it compares the steps, the model calls and the tool calls by their names and
    arguments.
    """
    return list(_compare(_course(list(recorded)), _course(list(replayed))))


def _compare(expected: _Course, got: _Course) -> Iterator[Divergence]:
    has_other_answer = False
    for one, other in zip_longest(expected.turns, got.turns):
        if other is None:
            yield from _missing(expected, got, is_explained=has_other_answer)
            return
        if one is None:
            if expected.end:  # the record of a run that goes on says nothing about later steps
                yield Divergence(other.step, expected.end, other.answer)
            return
        if Counter(one.messages) != Counter(other.messages):
            yield Divergence(other.step, _messages(one.messages), _messages(other.messages))
        has_other_answer = not one.answers_as(other)
        if has_other_answer:
            yield Divergence(other.step, one.answer, other.answer)
    if expected.end and expected.end != got.end:
        yield Divergence(got.last_step, expected.end, got.end or "a task that has not ended")


def _missing(expected: _Course, got: _Course, *, is_explained: bool) -> Iterator[Divergence]:
    """Yields the first turn that the replay lacks, and each message that it therefore never read.

    `is_explained`: its last answer is another one, which ended it earlier.
    """
    end = f"{got.end or 'a task that has not ended'} at step {got.last_step}"
    rest = expected.turns[len(got.turns) :]
    if not is_explained:
        yield Divergence(rest[0].step, rest[0].answer, end)
    for turn in rest:
        if turn.messages:
            yield Divergence(turn.step, _messages(turn.messages), end)


def _course(entries: Sequence[Entry]) -> _Course:
    first = entries[0].body if entries else None
    if isinstance(first, Submitted) and first.spec.control is not None:
        return _course_of_code(entries)
    course, unread = _Course(), list[str]()
    for entry in entries:
        course.last_step = max(course.last_step, entry.step)
        match entry.body:
            case UserMessage() if entry.body.request_id:
                unread.append(entry.body.text)
            case ModelAttempt(summary_through_step=0):
                course.begin(entry.step, unread)
                unread = []
            case AssistantMessage() if course.turns and course.turns[-1].step == entry.step:
                course.turns[-1].is_answered = True
            case ToolIntent() if course.turns:
                course.turns[-1].calls.append(call_key(entry.body))
            case Transition():
                course.end = _end(entry.body)
    return course


def _course_of_code(entries: Sequence[Entry]) -> _Course:
    """Returns the course of a function, or of an agent in Python: each step is a turn."""
    course, said, read = _Course(), list[str](), 0
    unread: list[str] = []
    for entry in entries:
        course.last_step = max(course.last_step, entry.step)
        match entry.body:
            case UserMessage():
                said.append(entry.body.text)
            case ControlStep(name=name, result_json=count) if name == MESSAGES:
                unread += said[read : int(count)]
                read = int(count)
            case ControlStep(failure=ControlFailure(error_class=INTERRUPTED.error_class)):
                pass  # a replay makes the call once, with the message
            case ControlStep(name=name, failure=failure):
                course.begin(entry.step, unread)
                course.turns[-1].name, course.turns[-1].is_answered = name, failure is None
                unread = []
            case ToolIntent():
                course.begin(entry.step, unread)
                course.turns[-1].calls.append(call_key(entry.body))
                course.turns[-1].is_answered, unread = True, []
            case Transition():
                course.end = _end(entry.body)
    return course


def _end(transition: Transition) -> str:
    is_end = transition.to_state in TERMINAL
    return f"the end as {transition.to_state} ({transition.reason})" if is_end else ""


def _messages(texts: Sequence[str]) -> str:
    if not texts:
        return "no message"
    return f"the message{'s' * (len(texts) > 1)} {', '.join(_shortened(repr(text)) for text in texts)}"


def _listed(calls: Sequence[CallKey]) -> str:
    return ", ".join(_shortened(f"{tool} {arguments}") for tool, arguments in calls)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
