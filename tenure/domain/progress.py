"""Notices an agent whose steps bring nothing new: the same calls with the same outcomes, again and again.

A step is *stale* when each of its calls was made in one of the last few steps with the same arguments and came to the
same outcome. So a call that is repeated, and calls that are repeated in turn, are noticed, and a call whose outcome
changes is not. The fold counts the stale steps in a row, so every owner, a replay and a fork decide alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tenure.domain.entries import ToolIntent, Transition
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import NoProgressPolicy
from tenure.domain.tools import UNUSABLE_CALL, Outcome, OutcomeStatus
from tenure.domain.waiting_calls import WAITING_TOOLS, move_to_wait
from tenure.domain.waits import CONTINUE, MAX_QUESTION_CHARACTERS, Wait, WaitKind, default_timeout_seconds

LONGEST_CYCLE: Final = 4
"""How many steps back an equal call is looked for."""


class _Thresholds(NamedTuple):
    """After how many stale steps the model reads that it repeats itself, and after how many the task leaves."""

    tell: int
    leave: int


FAILURES: Final = _Thresholds(tell=2, leave=5)
"""For stale steps with a failed call: the third equal failure, and the sixth."""
REPEATS: Final = _Thresholds(tell=9, leave=29)
"""For all stale steps. A successful call may be repeated for a good reason: its agent waits for a change."""
WAITING_SECONDS: Final = 10.0
"""A successful call that takes at least this long waits for something. It is not counted, and neither are the
successful calls of the few steps after it: an agent sleeps, and then looks again.
"""

_REFUSED: Final = frozenset({OutcomeStatus.INVALID_ARGUMENTS, OutcomeStatus.NOT_ALLOWED})
"""The outcomes of calls that were refused: they asked no person and did not wait."""

MARK: Final = "This call repeats itself: "
_SHOWN_CHARACTERS: Final = 200
_VARIABLE: Final = re.compile(r"(?<![\w.:+-])(?=[\w.:+-]*\d)[\w.:+-]{4,}")
"""Parts of an error that differ each time: times, ids, addresses. Status codes and small numbers have fewer digits.

The lookbehind looks for a digit once for each word. Without it, one long word without a digit takes minutes.
"""


CallKey = tuple[str, str]
"""A tool and its arguments, as JSON with sorted keys."""


def call_key(intent: ToolIntent) -> CallKey:
    """Returns what two equal calls have in common."""
    try:
        arguments = json.dumps(json.loads(intent.arguments_json or "{}"), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        arguments = intent.arguments_json
    return intent.tool, arguments


class MadeCall(NamedTuple):
    """A call and its outcome, as far as a repetition has the same."""

    tool: str
    arguments_json: str
    status: OutcomeStatus
    content: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest steps of an agent. `counts`: how often each call was made since the last step that was new.

    `stale`, `failing`: the stale steps since then, and those of them with a failed call. `is_told`: the model read
    about it since then. `_since_wait`: the steps since a call that waited. `unusable`: the newest answers in a row that
    could not be used as they were.
    """

    unusable: int = 0
    stale: int = 0
    failing: int = 0
    is_told: bool = False
    newest: tuple[MadeCall, ...] = ()
    counts: Mapping[MadeCall, int] = field(default_factory=dict)
    _recent: tuple[frozenset[MadeCall], ...] = ()
    _since_wait: int = LONGEST_CYCLE

    def after(self, made: Sequence[tuple[ToolIntent, Outcome]], *, only_failures: bool = False) -> Progress:
        """Returns the progress after one more step, which made these calls. A step without calls says nothing.

        `only_failures`: repeated successes do not count. The code of a function may want them.
        """
        if not made:
            return self
        newest = tuple(dict.fromkeys(_call_of(intent, outcome) for intent, outcome in made))
        recent = (*self._recent, frozenset(newest))[-LONGEST_CYCLE:]
        since_wait = 0 if any(_has_waited(outcome) for _, outcome in made) else self._since_wait + 1
        if self._is_new(newest):
            counts = dict.fromkeys(newest, 1)
            return Progress(self.unusable, newest=newest, counts=counts, _recent=recent, _since_wait=since_wait)
        has_failed = any(call.status is not OutcomeStatus.SUCCEEDED for call in newest)
        is_wanted = since_wait < LONGEST_CYCLE or only_failures
        return Progress(
            self.unusable,
            self.stale + (has_failed or not is_wanted),
            self.failing + has_failed,
            self.is_told or any(MARK in outcome.note for _, outcome in made),
            newest,
            {**self.counts, **{call: self.counts.get(call, 1) + 1 for call in newest}},
            recent,
            since_wait,
        )

    def after_answer(self, made: Sequence[tuple[ToolIntent, Outcome]], *, is_usable: bool) -> Progress:
        """Counts an answer, which made these calls. One that cannot be used as it is begins the count anew when a call
        of it that was run brought something new: of many files that an agent writes at once, the last one may be cut.
        """
        run = [_call_of(intent, outcome) for intent, outcome in made if outcome.detail != UNUSABLE_CALL]
        earlier = 0 if self._is_new(run) else self.unusable
        return replace(self, unusable=0 if is_usable else earlier + 1)

    def _is_new(self, calls: Sequence[MadeCall]) -> bool:
        return any(map(_is_new_by_nature, calls)) or not frozenset().union(*self._recent).issuperset(calls)

    def is_newest(self, intent: ToolIntent, outcome: Outcome) -> bool:
        """Whether `repeated` is this call."""
        return _call_of(intent, outcome) == self.repeated

    def is_due(self, thresholds: tuple[int, int]) -> bool:
        """Whether the failing steps, or all stale steps, have reached these numbers."""
        failures, repeats = thresholds
        return self.failing >= failures or self.stale >= repeats

    @property
    def must_tell(self) -> bool:
        """Whether the model is to read now that it repeats itself."""
        return not self.is_told and self.is_due((FAILURES.tell, REPEATS.tell))

    @property
    def repeated(self) -> MadeCall:
        """The call that the newest step repeats: one that failed, if any."""
        return next((call for call in self.newest if call.status is not OutcomeStatus.SUCCEEDED), self.newest[-1])


def note_of(progress: Progress, policy: NoProgressPolicy) -> str:
    """Returns what the model reads in the outcome of `progress.repeated`; "": nothing."""
    if policy is NoProgressPolicy.IGNORE or not progress.must_tell:
        return ""
    call = progress.repeated
    if call.status is OutcomeStatus.SUCCEEDED:
        advice = (
            "It tells you nothing new. If you wait for a change, wait longer before you ask again; otherwise go on "
            "with what you know."
        )
        left = REPEATS.leave - progress.stale
    else:
        advice = (
            "It will fail again. Change the arguments, use another tool, or give your final answer and say what did "
            "not work."
        )
        left = FAILURES.leave - progress.failing
    then = {
        NoProgressPolicy.END: f" After {left} more such steps the task ends.",
        NoProgressPolicy.ASK: f" After {left} more such steps a person is asked.",
    }.get(policy, "")
    return f"{MARK}{_how_often(progress)}. {advice}{then}"


def leave_without_progress(progress: Progress, policy: NoProgressPolicy, result: str) -> Transition | None:
    """Returns the transition of a task whose agent goes on repeating itself; None: it goes on."""
    if policy not in {NoProgressPolicy.END, NoProgressPolicy.ASK}:
        return None
    if not progress.is_due((FAILURES.leave, REPEATS.leave)):
        return None
    call = progress.repeated
    why = f"the agent repeats itself: {call.tool} {_shortened(call.arguments_json)} {_how_often(progress)}"
    if policy is NoProgressPolicy.END:
        return Transition(TaskState.FAILED, Reason.NO_PROGRESS, why, result)
    wait = Wait(
        WaitKind.NO_PROGRESS,
        "",
        f"May the task go on? {why[0].upper()}{why[1:]}."[:MAX_QUESTION_CHARACTERS],
        (CONTINUE,),
        timeout_seconds=default_timeout_seconds(WaitKind.NO_PROGRESS),
    )
    return move_to_wait(wait)


def _how_often(progress: Progress) -> str:
    call = progress.repeated
    times = f"was made {progress.counts[call]} times with the same arguments"
    if call.status is OutcomeStatus.SUCCEEDED:
        return f"{times} and the same outcome"
    return f"{times} and failed in the same way ({call.status}: {_shortened(call.content)})"


def _is_new_by_nature(call: MadeCall) -> bool:
    """Whether the call asked a person, or waited for something: its answer is new, also if it is the same again."""
    return call.tool in WAITING_TOOLS and call.status not in _REFUSED


def _has_waited(outcome: Outcome) -> bool:
    return not outcome.is_error and outcome.duration_seconds >= WAITING_SECONDS


def _call_of(intent: ToolIntent, outcome: Outcome) -> MadeCall:
    content = _VARIABLE.sub("…", outcome.content) if outcome.is_error else outcome.content
    return MadeCall(*call_key(intent), outcome.status, content)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"
