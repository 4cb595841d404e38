"""Decides about a call whose effect key another call has had: what is known of the effect, and what follows.

The functions are pure. The tool service calls them under the lock of the effect's row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from tenure.domain.effect_keys import OnRepeat
from tenure.domain.long_output import SHORTENED
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus

ALREADY_HAPPENED: Final = "ALREADY_HAPPENED"
"""The detail of a call that was not made, because its effect had happened."""
EFFECT_UNKNOWN: Final = "EFFECT_UNKNOWN"
"""The detail of a call that was not made, because its effect may have happened."""
EFFECT_RUNNING: Final = "EFFECT_RUNNING"
"""The detail of a call that was not made, because another call made its effect all the time."""
NOT_RUN: Final = "This call was not run: "
"""The note of a call in doubt begins with this if a person decides about a repeat, and not about a lost effect."""

_REFUSED: Final = frozenset({OutcomeStatus.INVALID_ARGUMENTS, OutcomeStatus.NOT_ALLOWED})


class EffectFact(StrEnum):
    """What is known of an effect."""

    RUNNING = "RUNNING"  # a call makes it now, or is about to
    HAPPENED = "HAPPENED"
    UNKNOWN = "UNKNOWN"  # it may have happened, or may still happen
    NONE = "NONE"  # it did not happen, and the call that tried will not make it


_KNOWLEDGE: Final = (EffectFact.NONE, EffectFact.UNKNOWN, EffectFact.HAPPENED, EffectFact.RUNNING)


def knows_as_much(newer: EffectFact, earlier: EffectFact) -> bool:
    """Whether the newer of two calls with one key says what is known. If it came to nothing, the earlier one does."""
    return _KNOWLEDGE.index(newer) >= _KNOWLEDGE.index(earlier)


def fact_of_outcome(outcome: Outcome) -> EffectFact:
    """Returns what a recorded outcome proves about the effect of its call.

    Any failure leaves the effect open, unless it proves the opposite. A success without effect is that of a call that
    was not made, because another call had made its effect. What refuses a later attempt proves nothing of the first.
    """
    if outcome.no_effect or outcome.status is OutcomeStatus.NOT_RUN:
        return EffectFact.NONE
    if outcome.status in _REFUSED and outcome.call_attempt <= 1:
        return EffectFact.NONE
    return EffectFact.HAPPENED if outcome.status is OutcomeStatus.SUCCEEDED else EffectFact.UNKNOWN


def fact_of_call(state: CallState, outcome: Outcome | None, *, begun_before: bool) -> EffectFact:
    """Returns what the record of the last call with the key says.

    `begun_before`: an earlier attempt of that call had begun, so that no outcome of a later one proves that nothing
    happened.
    """
    if state in {CallState.ACCEPTED, CallState.STARTED}:
        return EffectFact.RUNNING
    if state is CallState.IN_DOUBT or outcome is None:
        return EffectFact.NONE if state is CallState.NOT_RUN else EffectFact.UNKNOWN
    fact = fact_of_outcome(outcome)
    return EffectFact.UNKNOWN if fact is EffectFact.NONE and begun_before else fact


class Repeat(StrEnum):
    """What follows for a call whose effect key another call has had."""

    BEGIN = "BEGIN"  # it makes the effect
    BEGIN_AGAIN = "BEGIN_AGAIN"  # it makes the effect with the same idempotency key: the other side recognises it
    WAIT = "WAIT"  # for the other call
    ANSWER = "ANSWER"  # with the recorded outcome
    ASK = "ASK"  # a person
    REFUSE = "REFUSE"


def decide_repeat(fact: EffectFact, effect_class: EffectClass, on_repeat: OnRepeat, *, is_permitted: bool) -> Repeat:
    """Returns what follows. `is_permitted`: a person decided that this call makes the effect, whatever happened."""
    if fact is EffectFact.RUNNING:
        return Repeat.WAIT
    if fact is EffectFact.NONE or is_permitted:
        return Repeat.BEGIN
    if fact is EffectFact.UNKNOWN and effect_class.may_run_again:
        return Repeat.BEGIN_AGAIN
    if on_repeat is OnRepeat.ASK:
        return Repeat.ASK
    return Repeat.ANSWER if fact is EffectFact.HAPPENED and on_repeat is OnRepeat.RETURN else Repeat.REFUSE


# The outcomes of calls that were not made.


@dataclass(frozen=True, slots=True)
class OtherCall:
    """The call that has the effect key. `outcome` None: its record was deleted with its task."""

    task_id: str
    call_id: str
    at: datetime
    outcome: Outcome | None = None

    @property
    def text(self) -> str:
        """The call and its time, for the model and for people."""
        return f"call {self.call_id} of task {self.task_id}, {self.at.isoformat(sep=' ', timespec='seconds')}"


def already_happened(other: OtherCall, task_id: str) -> Outcome:
    """Returns the outcome of a call of this task whose effect has happened: the recorded one, after a sentence.

    The files of another task stay with that task.
    """
    head = f"This effect has happened already, by {other.text}. This call did nothing more."
    if other.outcome is None:
        content = f"{head} Its outcome was deleted with its task."
        return Outcome(OutcomeStatus.SUCCEEDED, content, detail=ALREADY_HAPPENED, no_effect=True)
    recorded, is_elsewhere = other.outcome, other.task_id != task_id
    is_part = is_elsewhere and recorded.truncated and bool(recorded.output_path)
    hint = " This is a part of it; all of it is in a file of that task." if is_part else ""
    content = f"{head}{hint} Its outcome:\n\n{recorded.text}"
    if is_elsewhere:
        recorded = replace(recorded, output_path="", images=())
    elif recorded.detail == SHORTENED:  # the model reads it so; the text names the file, which has all of it
        recorded = replace(recorded, output_path="")
    return replace(
        recorded,
        content=content,
        note="",
        detail=ALREADY_HAPPENED,
        duration_seconds=0.0,
        usage=None,
        output=None,
        no_effect=True,
    )


def refused_repeat(other: OtherCall, fact: EffectFact) -> Outcome:
    """Returns the outcome of a call that must not make its effect again."""
    if fact is EffectFact.HAPPENED:
        text = f"its effect has happened already, by {other.text}, and must not happen twice"
        return _not_made(text, ALREADY_HAPPENED)
    text = f"its effect may have happened already, by {other.text}. Find out first whether it did; a person can"
    return _not_made(text, EFFECT_UNKNOWN)


def waited_in_vain(other: OtherCall, seconds: float) -> Outcome:
    """Returns the outcome of a call that waited for another one with the same key."""
    text = f"{other.text}, makes the same effect, and did not end within {seconds:g} s. Ask again later"
    return _not_made(text, EFFECT_RUNNING)


def question_about_repeat(other: OtherCall, fact: EffectFact) -> str:
    """Returns the note of a call in doubt about which a person decides."""
    happened = "has happened" if fact is EffectFact.HAPPENED else "may have happened"
    return f"{NOT_RUN}its effect {happened} already, by {other.text}. A person decides whether it happens again."


def _not_made(why: str, detail: str) -> Outcome:
    return Outcome(OutcomeStatus.FAILED, f"{NOT_RUN}{why}.", detail=detail, no_effect=True)
