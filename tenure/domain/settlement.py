"""Settles a call whose end is unknown: what Tenure does next to learn whether the call had its effect.

The end of a call is unknown when its answer was lost: a timeout, a broken connection, an unclear answer, a runner that
died. A KEYED call is sent again with the same idempotency key until there is an answer about it. A check, a PURE tool
that the operator declares, says of a call whether it happened. When the time of the settlement has passed, the call is
in doubt, and a person decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tenure.domain.in_doubt import HAPPENED
from tenure.domain.retry import Jitter, RetryPolicy
from tenure.domain.texts import one_line
from tenure.domain.tool_arguments import strict_json
from tenure.domain.tools import CallSettlement, EffectClass, Outcome, OutcomeStatus

USUAL_SECONDS: Final = 300.0
"""How long a KEYED call, and any call with a check, is settled if its tool does not say how long."""
LONGEST_SECONDS: Final = 86_400.0
PAUSES: Final = RetryPolicy(initial_seconds=1.0, factor=2.0, cap_seconds=30.0, jitter=Jitter.EQUAL)
"""The pauses before the tries of a settlement. The number of tries is bounded by the time only."""

HARMLESS: Final = "It is not known whether it had its effect. A repeat of the same call does no harm."
"""What the model reads of a PURE or IDEMPOTENT call of unknown end."""

_SHOWN_CHARACTERS: Final = 300


class Try(StrEnum):
    """What a settlement does next."""

    REPEAT = "REPEAT"  # send the call again, with the same idempotency key
    CHECK = "CHECK"  # call the check


@dataclass(frozen=True, slots=True)
class SettlementPlan:
    """How calls of one tool are settled.

    `seconds`: from the moment at which the end of the call was first unknown. `repeats`: the call may be sent again.
    """

    seconds: float
    repeats: bool
    checks: bool

    @classmethod
    def of(cls, effect_class: EffectClass, declared: CallSettlement | None) -> SettlementPlan:
        """Returns the plan of a tool. A PURE call has nothing to settle; an IDEMPOTENT one is settled if declared."""
        if effect_class is EffectClass.PURE:
            return cls(0.0, repeats=False, checks=False)
        checks = declared is not None and declared.check_with is not None
        usual = USUAL_SECONDS if checks or effect_class is EffectClass.KEYED else 0.0
        given = None if declared is None else declared.for_seconds
        seconds = min(max(0.0, usual if given is None else given), LONGEST_SECONDS)
        return cls(seconds, repeats=effect_class.may_run_again and seconds > 0, checks=checks)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could bring an answer."""
        return not (self.repeats or self.checks)

    def pause_seconds(self, elapsed_seconds: float, tries: int, random_fraction: float) -> float:
        """Returns the pause before the next try, which ends at the end of the settlement at the latest.

        The first check comes at once; the first repeat comes after a pause, because the other side may be busy with
        the call.
        """
        if not (self.repeats or tries):
            return 0.0
        pause = PAUSES.wait_seconds(tries + 1 if self.repeats else tries, random_fraction)
        return min(pause, max(0.0, self.seconds - elapsed_seconds))

    def next_try(self, elapsed_seconds: float, *, checked_at_end: bool) -> Try | None:
        """Returns the next try. None: the call is in doubt.

        A check has the last word: it is called once more when the time has passed.
        """
        if elapsed_seconds < self.seconds:
            return Try.REPEAT if self.repeats else Try.CHECK
        return Try.CHECK if self.checks and not checked_at_end else None


def leaves_doubt(effect_class: EffectClass, declared: CallSettlement | None) -> bool:
    """Whether a call of unknown end is settled, and in doubt if that brings nothing.

    False: a repeat does no harm, and the model may decide about it.
    """
    if effect_class in {EffectClass.KEYED, EffectClass.UNSAFE}:
        return True
    return not SettlementPlan.of(effect_class, declared).is_empty


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What a check says. `happened` None: it does not know. `text`: a sentence for the person who resolves the call.

    `result`: what the model reads of a call that happened; "": the check gave none.
    """

    happened: bool | None
    text: str
    result: str = ""


def read_check(tool: str, outcome: Outcome) -> CheckFinding:
    """Reads the outcome of a check: a JSON object with `happened`: true, false or null, and maybe `result`.

    Whatever else it says means that it does not know.
    """
    if outcome.status is not OutcomeStatus.SUCCEEDED:
        return unreadable(tool, f"it ended as {outcome.status}: {outcome.content}")
    if outcome.truncated:
        return unreadable(tool, "its answer is too long")
    try:
        answer = strict_json(outcome.content, unique_names=True)
    except (ValueError, RecursionError):
        return unreadable(tool, f"its answer is not a JSON object: {outcome.content}")
    if not isinstance(answer, dict) or "happened" not in answer:
        return unreadable(tool, "its answer has no member `happened`")
    happened = answer["happened"]
    if happened is not None and not isinstance(happened, bool):
        return unreadable(tool, "its member `happened` is not true, false or null")
    if happened is None:
        return CheckFinding(None, f"{tool} does not know whether it happened.")
    if not happened:
        return CheckFinding(False, f"{tool} said that it did not happen.")
    return CheckFinding(True, f"{tool} said that it happened.", _as_text(answer.get("result")))


def unreadable(tool: str, why: str) -> CheckFinding:
    """Returns the finding of a check that gave no answer that can be read."""
    return CheckFinding(None, f"{tool} gave no answer that can be read: {one_line(why, _SHOWN_CHARACTERS)}")


def _as_text(result: Any) -> str:
    if result is None:
        return ""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def outcome_of_finding(finding: CheckFinding, call_attempt: int) -> Outcome | None:
    """Returns the outcome of a call that happened, or None: only a person may say that a call did not happen.

    A request may still be on its way when the check looks, so "it did not happen" is a fact about that moment.
    """
    if not finding.happened:
        return None
    content = finding.result or f"This call happened: {finding.text}"
    return Outcome(OutcomeStatus.SUCCEEDED, content, detail=HAPPENED, call_attempt=call_attempt)


def doubt_after(message: str, last: str, elapsed_seconds: float, tries: int) -> str:
    """Returns the message about a call whose settlement brought nothing. `last`: what the last try brought."""
    if not tries:
        return message
    times = "once" if tries == 1 else f"{tries} times"
    newest = f" The last try: {one_line(last, _SHOWN_CHARACTERS)}" if last else ""
    return f"{message} Tenure tried {times} within {elapsed_seconds:.0f} s to learn the end of the call.{newest}"
