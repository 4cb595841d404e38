"""What the record of a function, or of an agent in Python, gives to a replay of its code.

The code runs again from its beginning, so that it asks for its steps, model calls and messages again. A step is known
by its name, because the record does not have its arguments: the n-th step of a name gets the n-th recorded result of
that name. Tool calls are answered as those of agents without code (replay.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from tenure.domain.control import INTERRUPTED, MESSAGES
from tenure.domain.entries import (
    ControlFailure,
    ControlStep,
    Entry,
    ModelAttempt,
    Submitted,
    ToolIntent,
    UserMessage,
)
from tenure.domain.fold import ResumePoint
from tenure.domain.replay import NOT_RECORDED_MARK
from tenure.domain.task import ControlWork

NOT_RECORDED_CLASS: Final = "NotRecorded"
"""The class of the failure of a step or a model call that the record does not have."""
_NO_STEP: Final = "This is a replay, and the recorded run has no further step of this name. It was not executed."
_NO_CALL: Final = "This is a replay without a model, and the recorded run has no further model call of this name."
_OTHER_CALL: Final = (
    "This is a replay without a model, and the recorded run asked {}. Name a model for the replay, which then gets the "
    "calls of agents."
)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded step. `attempt`: the newest one of a model call; None: it is none."""

    step: ControlStep
    attempt: ModelAttempt | None


class RecordedCode:
    """The steps, the model calls and the messages of a recorded run of code.

    `control`: what ran; None: it was an agent without code. A replay interrupts nothing: it reads the message at the
    step of the model call that the message interrupted, and has no such step.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.control: ControlWork | None = None
        self._steps: dict[str, list[_Recorded]] = defaultdict(list)
        self._messages: list[tuple[int, UserMessage]] = []
        self._last_step = 0
        self._failure: ControlFailure | None = None
        said: list[UserMessage] = []
        attempts: dict[int, ModelAttempt] = {}
        skipped = 0
        for entry in entries:
            match entry.body:
                case Submitted(spec=spec):
                    self.control = spec.control
                case UserMessage():
                    said.append(entry.body)
                case ModelAttempt():
                    attempts[entry.step] = entry.body
                case ControlStep(failure=ControlFailure(error_class=INTERRUPTED.error_class)):
                    skipped += 1
                case ControlStep(name=name, result_json=count) if name == MESSAGES:
                    step = entry.step - skipped
                    self._messages += [(step, message) for message in said[len(self._messages) : int(count)]]
                    self._end_step(step)
                case ControlStep(name=name):
                    self._steps[name].append(_Recorded(entry.body, attempts.get(entry.step)))
                    self._end_step(entry.step - skipped)
                case ToolIntent():
                    self._end_step(entry.step - skipped)
                case ControlFailure():
                    self._failure = entry.body

    def _end_step(self, step: int) -> None:
        self._last_step, self._failure = max(self._last_step, step), None

    def step(self, point: ResumePoint, step: int, name: str, *, only_looks: bool) -> ControlStep:
        """Returns what a replay records as this step. `point`: the replay's own.

        `only_looks`: the step changes nothing, so that its further repeats get the last recorded result again.
        """
        recorded, repeat = self._steps.get(name, []), _repeat(point, step, name)
        if repeat < len(recorded):
            return recorded[repeat].step
        if recorded and only_looks:
            return recorded[-1].step
        return self._unrecorded(step, name, _NO_STEP)

    def model_call(self, point: ResumePoint, step: int, name: str, model: str, input_tokens: int) -> ControlStep:
        """Returns what a replay records as this model call: the recorded answer, if the request is the same.

        The record does not have requests. Of the same one, the model and the bound of the input are the same.
        """
        recorded, repeat = self._steps.get(name, []), _repeat(point, step, name)
        if repeat >= len(recorded):
            return self._unrecorded(step, name, _NO_CALL)
        attempt = recorded[repeat].attempt
        if attempt is None or (attempt.model, attempt.input_tokens) == (model, input_tokens):
            return recorded[repeat].step
        requests = (
            f"{attempt.model} with up to {attempt.input_tokens:,} tokens, not {model} with up to {input_tokens:,}"
        )
        return _failed(name, _OTHER_CALL.format(requests))

    def messages_due(self, step: int, read: Collection[UserMessage]) -> list[UserMessage]:
        """Returns the messages that the recorded run read through this step, without those of the replay's ledger.

        They are counted: the notes of undone calls have no request ids, and may be equal.
        """
        known = Counter((message.request_id, message.text) for message in read)
        due = [message for number, message in self._messages if number <= step]
        return [message for message in due if not _taken(known, (message.request_id, message.text))]

    def _unrecorded(self, step: int, name: str, why: str) -> ControlStep:
        """Returns the failure of a step that the record does not have.

        A step that failed, and whose failure the code did not catch, has no record but the failure of the code.
        """
        if self._failure is None or step != self._last_step + 1:
            return _failed(name, why)
        return ControlStep(name, failure=replace(self._failure, retryable=False))


def _taken(known: Counter[tuple[str, str]], message: tuple[str, str]) -> bool:
    """Takes one of the known messages, if there is such a one."""
    known[message] -= 1
    return known[message] >= 0


def _repeat(point: ResumePoint, step: int, name: str) -> int:
    """Returns how many steps of this name the replay made before this one."""
    return sum(number < step and each.name == name for number, each in point.control_steps.items())


def _failed(name: str, why: str) -> ControlStep:
    return ControlStep(name, failure=ControlFailure(NOT_RECORDED_CLASS, f"{NOT_RECORDED_MARK} {why}", retryable=False))
