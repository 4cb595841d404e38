"""Tokens and money set aside and used by one task: never more than its caps, and nothing that nobody will settle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from checker.check import Check, SumCheck, Violation
from checker.history import LedgerEntry, TaskHistory
from checker.reading import (
    NOTHING,
    Amount,
    charge,
    drives_itself,
    of_kind,
    own,
    place,
)
from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.entries import (
    AssistantMessage,
    AttemptLost,
    Body,
    GrantBudget,
    ModelAttempt,
    ModelFailure,
    OperatorRequest,
    Requeue,
    SubAgentsSpawned,
    Submitted,
    Transition,
    WaitResolution,
)
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Limits


class SettledAttempt(NamedTuple):
    """An attempt and its end: what was set aside, what was told then, and what is on the bill now."""

    set_aside: Amount
    reported: Amount
    billed: Amount

    @property
    def at_least(self) -> Amount:
        """What was used of it from then on, whenever a later report was made."""
        return Amount(min(self.reported.tokens, self.billed.tokens), min(self.reported.nano_usd, self.billed.nano_usd))


def spending(task: TaskHistory) -> Iterator[tuple[LedgerEntry, ModelAttempt | SettledAttempt | None]]:
    """A task's own entries in order, with the attempt that each opens or ends."""
    reported = {(bill.step, bill.attempt_number): bill.usage for bill in task.bills if bill.estimate is not None}
    open_now: ModelAttempt | None = None
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                open_now = attempt
                yield entry, attempt
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                billed = reported.get((entry.step, settled.attempt_number), settled.usage)
                yield entry, _settled(open_now, settled.usage, billed)
                open_now = None
            case _:
                yield entry, None


def set_aside_for(attempt: ModelAttempt) -> Amount:
    """What the attempt holds while it is open."""
    return Amount(attempt.reserved_tokens, attempt.reserved_nano_usd)


def cap_of(limits: Limits) -> Amount:
    """Money 0: without a cap."""
    return Amount(limits.max_tokens, limits.max_nano_usd)


def raise_of(body: Body | None) -> Amount:
    """By how much a fact raises the caps of its task's root."""
    match body:
        case OperatorRequest(act=Requeue() | GrantBudget() as act):
            return Amount(act.extra_tokens, act.extra_nano_usd)
        case WaitResolution(extra_budget_tokens=tokens):
            return Amount(tokens)
        case _:
            return NOTHING


def raised(cap: Amount, by: Amount) -> Amount:
    """What had no cap in money gets none."""
    return Amount(cap.tokens + by.tokens, cap.nano_usd + by.nano_usd if cap.nano_usd else 0)


def attempts_are_settled_once(task: TaskHistory) -> Iterator[str]:
    """I17: one attempt is open at a time, each has a number of its own, and whoever stops running leaves none open."""
    open_at: tuple[LedgerEntry, ModelAttempt] | None = None
    newest = (0, 0)
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                if open_at is not None:
                    yield f"{place(entry)} opens a model attempt while that of {place(open_at[0])} is open"
                number = (entry.step, attempt.attempt_number)
                if number <= newest:
                    yield f"{place(entry)} is step {number[0]} attempt {number[1]}, not after {newest[0]}/{newest[1]}"
                open_at, newest = (entry, attempt), max(newest, number)
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                if open_at is None:
                    yield f"{place(entry)} settles a model attempt, and none was open"
                elif (entry.step, settled.attempt_number) != (open_at[0].step, open_at[1].attempt_number):
                    yield f"{place(entry)} settles another model attempt than the open one of {place(open_at[0])}"
                open_at = None
            case Transition(to_state=to_state) if to_state is not TaskState.RUNNING and open_at is not None:
                yield f"{place(entry)} moves to {to_state}, and the model attempt of {place(open_at[0])} stays open"
            case _:
                pass


def caps_hold(task: TaskHistory) -> Iterator[str]:
    """I17, at every reserve. A bill beyond our upper bound may pass the cap; nothing is set aside then."""
    goal = next(of_kind(task.entries, Submitted), None)
    if goal is None:
        return
    cap, used = cap_of(goal[1].spec.limits), NOTHING
    cap = raised(cap, _raised_elsewhere(task, cap))
    for entry, spent in spending(task):
        cap = raised(cap, raise_of(entry.body))
        match spent:
            case SettledAttempt() as settled:
                used += settled.at_least
            case ModelAttempt() as attempt:
                yield from _beyond(entry, attempt, used, cap)
            case None:
                pass


def _raised_elsewhere(task: TaskHistory, cap: Amount) -> Amount:
    """Of a root: by how much its cap was raised in its sub-agents. Nobody here knows when."""
    is_root = task.row is not None and task.row.root_task_id in {"", task.task_id}
    if not is_root or task.budget is None:
        return NOTHING
    for entry in task.entries:
        cap = raised(cap, raise_of(entry.body))
    budget = task.budget.budget
    return (Amount(budget.max_tokens, budget.max_nano_usd) - cap).above_nothing


def _beyond(entry: LedgerEntry, attempt: ModelAttempt, used: Amount, cap: Amount) -> Iterator[str]:
    aside = set_aside_for(attempt)
    total = used + aside
    if total.tokens > cap.tokens or total.nano_usd > cap.nano_usd > 0:
        yield f"{place(entry)} sets {aside} aside with {used} used: {total} of {cap}"
    if aside.tokens < attempt.input_tokens + attempt.max_output_tokens:
        yield f"{place(entry)} sets less aside than its input and output may come to"
    whole = TokenUsage(input_tokens=attempt.input_tokens, output_tokens=attempt.max_output_tokens)
    if aside.nano_usd < charge(attempt.prices, whole):
        yield f"{place(entry)} sets less aside than its input and output may cost"


def the_row_has_used_what_its_entries_say(task: TaskHistory) -> Iterator[str]:
    """I17, of the snapshot. It was read before the bills: what was reported meanwhile is not in it."""
    if task.row is None:
        return
    ends = [spent for _, spent in spending(task) if isinstance(spent, SettledAttempt)]
    used_by_entries = sum((entry.usage for entry in _ends(task)), start=TokenUsage())
    possible = {(used_by_entries, sum(spent.reported.nano_usd for spent in ends))}
    corrections = _corrections(task)
    for correction, cost in corrections:
        possible |= {(usage + correction, nano_usd + cost) for usage, nano_usd in possible}
    if task.row.usage not in {usage for usage, _ in possible}:
        yield f"the task's row has used {_usage(task.row.usage)}, its entries {_usage(used_by_entries)}"
    elif (task.row.usage, task.row.used_nano_usd) not in possible:
        costs = " or ".join(str(cost) for _, cost in sorted(possible, key=itemgetter(1)))
        yield f"the task's row has cost {task.row.used_nano_usd} n$, its entries {costs}"


def _corrections(task: TaskHistory) -> list[tuple[TokenUsage, int]]:
    """What reports added to a task's bill, in tokens and money."""
    opened = of_kind(own(task.entries), ModelAttempt)
    prices = {(entry.step, attempt.attempt_number): attempt.prices for entry, attempt in opened}
    reported = [bill for bill in task.bills if bill.estimate is not None][:MOST_CORRECTIONS]
    was = [charge(prices.get((bill.step, bill.attempt_number)), bill.settled_with) for bill in reported]
    return [(bill.correction, bill.nano_usd - cost) for bill, cost in zip(reported, was, strict=True)]


def _ends(task: TaskHistory) -> Iterator[AssistantMessage | ModelFailure | AttemptLost]:
    for entry in own(task.entries):
        if isinstance(entry.body, AssistantMessage | ModelFailure | AttemptLost):
            yield entry.body


def _settled(attempt: ModelAttempt | None, reported: TokenUsage, billed: TokenUsage) -> SettledAttempt:
    prices = attempt.prices if attempt is not None else None
    return SettledAttempt(
        set_aside_for(attempt) if attempt is not None else NOTHING,
        Amount(reported.total, charge(prices, reported)),
        Amount(billed.total, charge(prices, billed)),
    )


def _usage(usage: TokenUsage) -> str:
    cached = f" + {usage.cache_creation_input_tokens} written to and {usage.cache_read_input_tokens} read from a cache"
    return f"{usage.input_tokens} in, {usage.output_tokens} out" + (
        cached if usage.cache_creation_input_tokens or usage.cache_read_input_tokens else ""
    )


MOST_CORRECTIONS: Final = 10
"""So many are told apart, each counted in the row or not. A task has rarely one."""

_BUDGETS_CHECKS: Final = (
    Check("I17", "model attempts are opened and settled once each", ("entries",), attempts_are_settled_once),
    Check("I17", "nothing is set aside beyond a task's own caps", ("entries",), caps_hold),
    Check("I17", "the row's use is its entries'", ("tasks", "entries"), the_row_has_used_what_its_entries_say),
)


# The ledger's bill against the provider's, call by call.


def answers_cost_what_was_billed(task: TaskHistory) -> Iterator[str]:
    """I18, for calls with an answer: those that were lost are estimated."""
    billed = {call.request_id: call for call in task.model_calls}
    for entry, answer in of_kind(own(task.entries), AssistantMessage) if drives_itself(task) else ():
        call = billed.get(answer.provider_request_id)
        if call is None:
            yield f"{place(entry)} is the answer to {answer.provider_request_id or '-'}, which the provider never gave"
        elif call.usage != answer.usage:
            yield (
                f"{place(entry)} counts {answer.usage.total} tokens, "
                f"the provider billed {call.usage.total} for {call.request_id}"
            )


def bills_are_the_entries(task: TaskHistory) -> Iterator[str]:
    """I18, of the bill that the ledger keeps apart: one row for each settled attempt."""
    settled = Counter((entry.step, body.attempt_number, body.usage) for entry, body in _settled_attempts(task))
    kept = Counter((bill.step, bill.attempt_number, bill.settled_with) for bill in task.bills)
    for step, attempt_number, usage in settled - kept:
        yield f"step {step} attempt {attempt_number} was settled with {usage.total} tokens, and is not on the bill"
    for step, attempt_number, usage in kept - settled:
        yield f"step {step} attempt {attempt_number} is on the bill with {usage.total} tokens; no entry says so"


def bills_say_whose_and_how(task: TaskHistory) -> Iterator[str]:
    """I18: who pays, whether it is an estimate, and the provider's name for the call are what the entries say."""
    settled = {(entry.step, body.attempt_number): body for entry, body in _settled_attempts(task)}
    root_id = task.row.root_task_id if task.row is not None else ""
    for bill in task.bills:
        settled_entry = settled.get((bill.step, bill.attempt_number))
        which = f"step {bill.step} attempt {bill.attempt_number}"
        if root_id and bill.root_task_id != root_id:
            yield f"{which} is on the bill of {bill.root_task_id}, the task's root is {root_id}"
        if settled_entry is not None and bill.lost != isinstance(settled_entry, AttemptLost):
            kept = "an estimate" if bill.lost else "what was told"
            yield f"{which} is on the bill as {kept}, its entry says otherwise"
        if bill.estimate is not None and not bill.lost:
            yield f"{which} was not lost, and its bill was changed by a report"
        if settled_entry is None or bill.estimate is not None:  # the report names the call
            continue
        if bill.provider_request_id != _kept(getattr(settled_entry, "provider_request_id", "")):
            yield f"{which} is on the bill as {bill.provider_request_id or 'nameless'}, its entry names another call"


def bills_cost_what_was_agreed(task: TaskHistory) -> Iterator[str]:
    """I18: money is charged by the prices that were set down with the reservation, and by nothing later."""
    attempts = {
        (entry.step, attempt.attempt_number): attempt for entry, attempt in of_kind(own(task.entries), ModelAttempt)
    }
    for bill in task.bills:
        attempt = attempts.get((bill.step, bill.attempt_number))
        if attempt is None:
            continue
        which = f"step {bill.step} attempt {bill.attempt_number}"
        if bill.nano_usd != (expected := charge(attempt.prices, bill.usage)):
            yield f"{which} is on the bill with {bill.nano_usd} n$, by its prices it costs {expected}"
        if bill.unpriced != (attempt.prices is None):
            yield f"{which} is on the bill as {'unpriced' if bill.unpriced else 'priced'}, its entry says otherwise"


def model_calls_are_in_the_ledger(task: TaskHistory) -> Iterator[str]:
    """I19: no call without an attempt, and no attempt that was sent twice."""
    attempts = {(entry.step, attempt.attempt_number) for entry, attempt in of_kind(own(task.entries), ModelAttempt)}
    sent: Counter[tuple[int, int]] = Counter()
    for call in task.model_calls:
        number = (call.step, call.attempt_number)
        sent[number] += 1
        if not task.task_id:
            yield f"the provider saw the call {call.request_id}, which belongs to no task"
        elif number not in attempts:
            yield (
                f"the provider saw step {call.step} attempt {call.attempt_number} ({call.request_id}), "
                "which is not in the ledger"
            )
    for (step, attempt_number), count in sent.items():
        if count > 1 and task.task_id:
            yield f"step {step} attempt {attempt_number} was sent to the provider {count} times"


def _kept(text: str) -> str:
    """As Postgres can keep it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _settled_attempts(task: TaskHistory) -> Iterator[tuple[LedgerEntry, AssistantMessage | ModelFailure | AttemptLost]]:
    for entry in own(task.entries):
        if isinstance(entry.body, AssistantMessage | ModelFailure | AttemptLost):
            yield entry, entry.body


_ACCOUNTING_CHECKS: Final = (
    Check("I18", "answers cost what the provider billed", ("model_calls", "entries"), answers_cost_what_was_billed),
    Check("I18", "the bill has a row for each settled attempt", ("bills", "entries"), bills_are_the_entries),
    Check(
        "I18", "the bill says whose it is and how it is known", ("tasks", "bills", "entries"), bills_say_whose_and_how
    ),
    Check("I18", "the bill charges what was agreed", ("bills", "entries"), bills_cost_what_was_agreed),
    Check("I19", "model calls have an attempt of their own", ("model_calls", "entries"), model_calls_are_in_the_ledger),
)


# Budgets of roots: what all tasks of a root use and set aside together, at its end and at every moment before.


class _Change(NamedTuple):
    """What one entry does to the budget.

    `beyond`: what an attempt came to above what it had set aside; `reported`: what was said later above what was used.
    """

    at: float
    cap: Amount = NOTHING
    used: Amount = NOTHING
    reserved: Amount = NOTHING
    beyond: Amount = NOTHING
    reported: Amount = NOTHING
    starts: bool = False


class _Stand(NamedTuple):
    """A budget at some moment."""

    cap: Amount = NOTHING
    used: Amount = NOTHING
    reserved: Amount = NOTHING

    def __str__(self) -> str:
        return f"{self.used} used and {self.reserved} set aside of {self.cap}"


class _Moment(NamedTuple):
    """Where the changes so far have led."""

    stand: _Stand = _Stand()
    beyond: Amount = NOTHING
    reported: Amount = NOTHING

    def after(self, change: _Change) -> _Moment:
        now = self.stand
        cap = now.cap + change.cap if change.starts else raised(now.cap, change.cap)
        stand = _Stand(cap, now.used + change.used, now.reserved + change.reserved)
        return _Moment(stand, self.beyond + change.beyond, self.reported + change.reported)

    @property
    def final(self) -> _Stand:
        """With what was reported."""
        return self.stand._replace(used=self.stand.used + self.reported)

    def is_too_much(self, unknown: Amount) -> bool:
        """Whether more is taken than may be. `unknown`: by how much the caps were raised nobody knows when."""
        taken = self.stand.used + self.stand.reserved - self.beyond
        cap = self.stand.cap + unknown
        return taken.tokens > cap.tokens or taken.nano_usd > cap.nano_usd > 0


@dataclass(slots=True)
class _Root:
    """All that is known of a root. `stands`: its budget's row as it was read last. `after`: what may have followed."""

    changes: list[_Change] = field(default_factory=list)
    after: list[_Change] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    spawned: set[str] = field(default_factory=set)
    has_itself: bool = False
    at_rest: bool = True
    stands: _Stand | None = None

    def add(self, task: TaskHistory, changes: list[_Change], *, is_root: bool) -> None:
        """One of its tasks. What is open at the end of what is known of it may have been settled right after that."""
        self.changes += changes
        reserved = _come_to(changes).reserved
        if reserved != NOTHING:
            self.after.append(_Change(math.nextafter(changes[-1].at, math.inf), reserved=NOTHING - reserved))
        self.known.add(task.task_id)
        self.spawned |= _spawned(task)
        self.has_itself |= is_root
        self.at_rest &= "settled" in task.collected or (task.row is not None and task.row.state in TERMINAL)

    def violations(self) -> Iterator[str]:
        """What does not add up."""
        come_to = _come_to(self.changes)
        is_whole = self.has_itself and self.spawned <= self.known and (len(self.known) == 1 or self.at_rest)
        if is_whole and self.stands is not None and self.stands != come_to:
            yield f"the budget has {self.stands}, its entries come to {come_to}"
        if moment := self._first_moment_beyond():
            yield moment

    def _first_moment_beyond(self) -> str:
        """A cap that was raised in a task that is not known was raised at the beginning, as far as anybody can tell."""
        unknown = (self.stands.cap - _come_to(self.changes).cap).above_nothing if self.stands is not None else NOTHING
        now = _Moment()
        in_order = sorted([*self.changes, *self.after], key=attrgetter("at"))
        for at, together in groupby(in_order, key=attrgetter("at")):
            for change in together:
                now = now.after(change)
            if now.is_too_much(unknown):
                message = (
                    f"{now.beyond} of that were beyond what was set aside" if now.beyond != NOTHING else "too much"
                )
                return f"at {at:.6f} the budget had {now.stand}: {message}"
        return ""


class _Roots:
    """I17, of budgets. Of a root whose own use is all of its budget only the sums are kept: most have no child."""

    def __init__(self) -> None:
        self._roots: dict[str, _Root] = {}
        self._alone: dict[str, _Stand] = {}

    def add(self, task: TaskHistory) -> None:
        if task.row is None:
            self._read(task.task_id, task.budget.budget if task.budget is not None else None)
            return
        root_id = task.row.root_task_id or task.task_id
        is_root = root_id == task.task_id
        changes = list(_changes(task, is_root=is_root))
        stands = None if task.budget is None else _of_row(task.budget.budget)
        if root_id not in self._roots and stands is not None and stands == _come_to(changes):
            self._alone[root_id] = stands
            return
        self._root(root_id).add(task, changes, is_root=is_root)
        self._read(root_id, None if task.budget is None else task.budget.budget)

    def violations(self) -> Iterator[Violation]:
        for root_id, root in self._roots.items():
            for violation in root.violations():
                yield Violation("I17", root_id, violation)

    def _root(self, root_id: str) -> _Root:
        """With what is known of it so far; a root that was taken to be alone has its sums at the beginning of time."""
        root = self._roots.setdefault(root_id, _Root())
        alone = self._alone.pop(root_id, None)
        if alone is not None:
            taken = alone.used + alone.reserved
            root.changes.append(_Change(0.0, alone.cap, alone.used, alone.reserved, taken, starts=True))
            root.known, root.has_itself, root.stands = {root_id}, True, alone
        return root

    def _read(self, root_id: str, budget: Budget | None) -> None:
        """A row that was read with one of the root's tasks. Rows are read in the order in which they come."""
        if budget is not None and self._alone.get(root_id) != _of_row(budget):
            self._root(root_id).stands = _of_row(budget)


def _changes(task: TaskHistory, *, is_root: bool) -> Iterator[_Change]:
    """Of one task, in order."""
    for entry, spent in spending(task):
        at = entry.recorded_at
        if isinstance(entry.body, Submitted) and is_root:
            yield _Change(at, cap=cap_of(entry.body.spec.limits), starts=True)
        if (more := raise_of(entry.body)) != NOTHING:
            yield _Change(at, cap=more)
        match spent:
            case SettledAttempt(set_aside=aside, reported=reported, billed=billed) as settled:
                used, beyond = settled.at_least, (reported - aside).above_nothing
                yield _Change(at, NOTHING, used, NOTHING - aside, beyond, billed - used)
            case ModelAttempt() as attempt:
                yield _Change(at, reserved=set_aside_for(attempt))
            case None:
                pass


def _spawned(task: TaskHistory) -> set[str]:
    """The sub-agents it has, collected or not."""
    return {
        task_id for entry in task.entries if isinstance(entry.body, SubAgentsSpawned) for task_id in entry.body.task_ids
    }


def _come_to(changes: list[_Change]) -> _Stand:
    """Where they lead."""
    now = _Moment()
    for change in sorted(changes, key=attrgetter("at")):
        now = now.after(change)
    return now.final


def _of_row(budget: Budget) -> _Stand:
    return _Stand(
        Amount(budget.max_tokens, budget.max_nano_usd),
        Amount(budget.used_tokens, budget.used_nano_usd),
        Amount(budget.reserved_tokens, budget.reserved_nano_usd),
    )


_ROOTS_CHECKS: Final = (
    SumCheck(
        "I17",
        "budgets are what their tasks used and set aside, at every moment",
        ("tasks", "entries", "budgets"),
        _Roots,
    ),
)


CHECKS: Final = (
    *_BUDGETS_CHECKS,
    *_ACCOUNTING_CHECKS,
    *_ROOTS_CHECKS,
)
