"""Stops: which calls and tasks an operator's stop covers, how certain the end of a stopped call is. Pure.

A stop has selectors (tenant, agent, queue, tool). It covers what all of its selectors match; an empty selector matches
everything, so a stop without selectors covers the installation. A stop with a tool covers calls of that tool only, and
no task: the task waits at its call. A quota of 0 is a stop of its tenant, too, beside one that an operator began.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from tenure.domain.errors import InvalidRequest, Unavailable
from tenure.domain.quotas import OF_CALLS, Quota, QuotaKind
from tenure.domain.states import Reason
from tenure.domain.tools import CallState, EffectClass
from tenure.domain.waiting_calls import WAITING_TOOLS

MAX_STOPS: Final = 200
_TOOL_PATTERN: Final = re.compile(r"[a-zA-Z0-9_*-]*")
MAX_REASON_CHARACTERS: Final = 1000
RETRY_SECONDS: Final = 5.0
"""The time after which a stopped task is queued again. A stop that is still in force keeps it in the queue."""

STOPPING_QUOTAS: Final = (QuotaKind.RUNNING_TASKS, *OF_CALLS)
"""Of which 0 allows no task to go on."""
_QUOTA_NAMES: Final = {
    QuotaKind.RUNNING_TASKS: "running tasks",
    QuotaKind.TOKENS_PER_HOUR: "tokens an hour",
    QuotaKind.MONEY_PER_DAY: "dollars a day",
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop in force. `epoch`: it grows with each stop and each end of a stop, over the whole installation.

    `by_quota`: a quota of 0 of the tenant is the stop, and a higher quota ends it.
    """

    tenant: str = ""
    agent: str = ""
    queue: str = ""
    tool: str = ""
    reason: str = ""
    stopped_by: str = ""
    stop_time: datetime | None = None
    epoch: int = 0
    by_quota: bool = False

    def covers_task(self, subject: Subject) -> bool:
        """Whether a task with this subject gets no grant and no model call."""
        return not self.tool and self._selects(subject)

    def covers_call(self, subject: Subject, tool: str) -> bool:
        """Whether no call of this tool begins."""
        return self._selects(subject) and covers_tool(self.tool, tool)

    def _selects(self, subject: Subject) -> bool:
        return (
            self.tenant in {"", subject.tenant}
            and self.agent in {"", subject.agent}
            and self.queue in {"", subject.queue}
        )

    @property
    def selectors(self) -> tuple[str, str, str, str]:
        """What the stop selects, "" for everything."""
        return self.tenant, self.agent, self.queue, self.tool

    @property
    def identity(self) -> tuple[str, str, str, str, bool]:
        """There is one stop of the same selectors by an operator at a time, and one by a quota."""
        return (*self.selectors, self.by_quota)

    def describe(self) -> str:
        """Returns what the stop covers, for people: `tool mail_*, tenant acme`."""
        return ", ".join(f"{kind} {name}" for kind, name in self._named) or "everything"

    @property
    def end_command(self) -> str:
        """The command of an operator that ends the stop, without its reason."""
        if self.by_quota:
            return f"tenure tenants limit {self.tenant} with a higher quota"
        options = " ".join(f"--{kind} {shlex.quote(name)}" for kind, name in self._named)
        return f"tenure admin resume {options or '--all'}"

    @property
    def _named(self) -> list[tuple[str, str]]:
        selectors = (("tool", self.tool), ("agent", self.agent), ("queue", self.queue), ("tenant", self.tenant))
        return [(kind, name) for kind, name in selectors if name]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a stop compares of a task: its tenant, agent ("": none) and queue."""

    tenant: str
    agent: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True)
class StopsInForce:
    """All stops of the installation as of one epoch. -1: not read yet."""

    epoch: int = -1
    stops: Sequence[Stop] = field(default=())

    def of_task(self, subject: Subject) -> Stop | None:
        """Returns a stop that covers the task."""
        return next((stop for stop in self.stops if stop.covers_task(subject)), None)

    def of_call(self, subject: Subject, tool: str) -> Stop | None:
        """Returns a stop that covers a call of the tool."""
        return next((stop for stop in self.stops if stop.covers_call(subject, tool)), None)


def covers_tool(pattern: str, tool: str) -> bool:
    """Whether a pattern, in which * stands for any text, covers the tool. "": it covers every tool."""
    return not pattern or fnmatchcase(tool, pattern)


def check_selectors(stop: Stop, *, is_all: bool) -> None:
    """Raises InvalidRequest for selectors that are missing or unclear, and for tools that a stop could not stop.

    A pattern of asterisks only is every tool, without those that begin a wait.
    """
    if is_all is not (stop.selectors == ("", "", "", "")):
        message = "either name a tool, an agent, a queue or a tenant, or ask for the whole installation with all"
        raise InvalidRequest(violations=[("all", message)])
    if _TOOL_PATTERN.fullmatch(stop.tool) is None:
        raise InvalidRequest(violations=[("tool", "has letters, digits, _ and -, and * for any text")])
    waiting = next((tool for tool in WAITING_TOOLS if stop.tool.strip("*") and covers_tool(stop.tool, tool)), None)
    if waiting is not None:
        message = f"covers {waiting}, and no stop of a tool prevents the wait that {waiting} begins"
        raise InvalidRequest(violations=[("tool", f"{message}: stop an agent, a queue or a tenant")])


def stopped(stop: Stop, *, may_have_begun: bool = False) -> Unavailable:
    """Returns the refusal of a call: the caller's task leaves its worker, and makes the call after the stop."""
    call = "It may have had its effect, and runs again after the stop" if may_have_begun else "Nothing was begun"
    return Unavailable(
        f"{stop.stopped_by or 'an operator'} stopped {stop.describe()}: {stop.reason}. {call}; "
        f"{stop.end_command} ends the stop",
        reason=Reason.STOPPED,
        retry_after_seconds=RETRY_SECONDS,
    )


def stop_of(tenant: str, quotas: Mapping[QuotaKind, Quota], own: Collection[str], by: str, reason: str) -> Stop | None:
    """Returns the stop that a tenant's quotas of 0 are. None: no quota of its own is 0.

    A default of 0 is a cap only: it would be a stop of every tenant, and there are at most MAX_STOPS.
    """
    kinds = [kind for kind in STOPPING_QUOTAS if kind.value in own and kind in quotas and quotas[kind].most == 0]
    if not kinds:
        return None
    named = " and of ".join(_QUOTA_NAMES[kind] for kind in kinds)
    text = f"its quota of {named} is 0: {reason}"[:MAX_REASON_CHARACTERS]
    return Stop(tenant, reason=text, stopped_by=by, by_quota=True)


def lost_stops(known: Iterable[Stop], others: Iterable[Stop]) -> list[Stop]:
    """Returns the stops of `others` that `known` does not have."""
    identities = {stop.identity for stop in known}
    return [stop for stop in others if stop.identity not in identities]


def keeps_unknown(reader: StopsInForce, ledger: StopsInForce) -> bool:
    """Whether a reader keeps to stops, or to ends of stops, that the ledger lost when it was restored.

    A restored ledger gives out again the epochs that it lost, so stops of the same epoch are compared, too.
    """
    if reader.epoch != ledger.epoch:
        return reader.epoch > ledger.epoch
    return {stop.identity for stop in reader.stops} != {stop.identity for stop in ledger.stops}


class Certainty(StrEnum):
    """How certain it is what a call in flight at the time of a stop did."""

    ENDED = "ENDED"  # it ran to its end, and its outcome is recorded
    NOT_BEGUN = "NOT_BEGUN"  # it was stopped before it began: nothing was done
    MAY_HAVE_HAPPENED = "MAY_HAVE_HAPPENED"  # it began and was stopped, or its runner is gone
    STILL_RUNS = "STILL_RUNS"  # an UNSAFE call, which a stop lets finish
    MODEL_CALL = "MODEL_CALL"  # a model call was sent or reserved; its answer is paid for and kept


def certainty_of(state: CallState, effect_class: EffectClass, *, is_run: bool, begun_before: bool) -> Certainty:
    """Returns what is certain of a call by its record. `is_run`: a living runner has it."""
    match state:
        case CallState.FINISHED:
            return Certainty.ENDED
        case CallState.ACCEPTED | CallState.NOT_RUN:
            return Certainty.MAY_HAVE_HAPPENED if begun_before else Certainty.NOT_BEGUN
        case CallState.STARTED if is_run and not effect_class.may_run_again:
            return Certainty.STILL_RUNS
        case _:
            return Certainty.MAY_HAVE_HAPPENED
