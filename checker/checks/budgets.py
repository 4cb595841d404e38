"""Checks of budgets and bills: reservations, caps, the provider's bill, the budgets of task trees (I17 to I19)."""

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
from checker.reading import NOTHING, Amount, charge, drives_itself, of_kind, own, place
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
from tenure.domain.in_doubt import stays_open
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import Limits


class SettledAttempt(NamedTuple):
    """A settled model attempt: its reservation, the usage in the settling entry, and the usage on the bill now."""

    reserved: Amount
    reported: Amount
    billed: Amount

    @property
    def at_least(self) -> Amount:
        """The smaller of both usages: a lower bound at any time after the settling entry, with or without report."""
        return Amount(min(self.reported.tokens, self.billed.tokens), min(self.reported.nano_usd, self.billed.nano_usd))


def spending(task: TaskHistory) -> Iterator[tuple[LedgerEntry, ModelAttempt | SettledAttempt | None]]:
    """Yields a task's own entries in order, with the model attempt that each of them opens or settles."""
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


def reservation_of(attempt: ModelAttempt) -> Amount:
    """Returns the reservation of an open model attempt."""
    return Amount(attempt.reserved_tokens, attempt.reserved_nano_usd)


def cap_of(limits: Limits) -> Amount:
    """Returns the caps as an amount. Money 0 sets no cap."""
    return Amount(limits.max_tokens, limits.max_nano_usd)


def raise_of(body: Body | None) -> Amount:
    """Returns by how much an entry raises the caps of its task's root."""
    match body:
        case OperatorRequest(act=Requeue() | GrantBudget() as act):
            return Amount(act.extra_tokens, act.extra_nano_usd)
        case WaitResolution(extra_budget_tokens=tokens, extra_budget_nano_usd=nano_usd):
            return Amount(tokens, nano_usd)
        case _:
            return NOTHING


def raised(cap: Amount, by: Amount) -> Amount:
    """Returns the raised cap. A cap without a limit of money stays without one."""
    return Amount(cap.tokens + by.tokens, cap.nano_usd + by.nano_usd if cap.nano_usd else 0)


def attempts_are_settled_once(task: TaskHistory) -> Iterator[str]:
    """I17: one model attempt is open at a time, each has a new number, and none is open when the task stops running.

    One that outlives its worker stays open while the task is queued for its next owner.
    """
    open_at: tuple[LedgerEntry, ModelAttempt] | None = None
    newest = (0, 0)
    for entry in own(task.entries):
        match entry.body:
            case ModelAttempt() as attempt:
                if open_at is not None:
                    yield f"{place(entry)} opens a model attempt while {place(open_at[0])} is open"
                number = (entry.step, attempt.attempt_number)
                if number <= newest:
                    yield f"{place(entry)} is step {number[0]} attempt {number[1]}, not after {newest[0]}/{newest[1]}"
                open_at, newest = (entry, attempt), max(newest, number)
            case AssistantMessage() | ModelFailure() | AttemptLost() as settled:
                if open_at is None:
                    yield f"{place(entry)} settles a model attempt, but none is open"
                elif (entry.step, settled.attempt_number) != (open_at[0].step, open_at[1].attempt_number):
                    yield f"{place(entry)} settles another model attempt than the open {place(open_at[0])}"
                open_at = None
            case Transition(to_state=to_state) if open_at is not None:
                outlives = open_at[1].outlives_worker
                if to_state is not TaskState.RUNNING and not stays_open(to_state, outlives_worker=outlives):
                    yield f"{place(entry)} moves to {to_state} while the model attempt {place(open_at[0])} is open"
            case _:
                pass


def caps_hold(task: TaskHistory) -> Iterator[str]:
    """I17, at every reservation. A bill may exceed its reservation and the cap; then no further reservation fits."""
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
                yield from _check_reservation(entry, attempt, used, cap)
            case None:
                pass


def _raised_elsewhere(task: TaskHistory, cap: Amount) -> Amount:
    """Returns by how much sub-agents raised the cap of a root. The time of the raise is unknown here."""
    is_root = task.row is not None and task.row.root_task_id in {"", task.task_id}
    if not is_root or task.budget is None:
        return NOTHING
    for entry in task.entries:
        cap = raised(cap, raise_of(entry.body))
    budget = task.budget.budget
    return (Amount(budget.max_tokens, budget.max_nano_usd) - cap).above_nothing


def _check_reservation(entry: LedgerEntry, attempt: ModelAttempt, used: Amount, cap: Amount) -> Iterator[str]:
    reserved = reservation_of(attempt)
    total = used + reserved
    if total.tokens > cap.tokens or total.nano_usd > cap.nano_usd > 0:
        yield f"{place(entry)} reserves {reserved} with {used} used: {total} of {cap}"
    if reserved.tokens < attempt.input_tokens + attempt.max_output_tokens:
        yield f"{place(entry)} reserves fewer tokens than its input and its largest output have"
    whole = TokenUsage(input_tokens=attempt.input_tokens, output_tokens=attempt.max_output_tokens)
    if reserved.nano_usd < charge(attempt.prices, whole):
        yield f"{place(entry)} reserves less money than its input and its largest output cost"


def the_row_has_the_entries_usage(task: TaskHistory) -> Iterator[str]:
    """I17, for the task row. It was read before the bills, so it may lack later reports."""
    if task.row is None:
        return
    settled = [spent for _, spent in spending(task) if isinstance(spent, SettledAttempt)]
    used_by_entries = sum((entry.usage for entry in _settling_bodies(task)), start=TokenUsage())
    possible = {(used_by_entries, sum(spent.reported.nano_usd for spent in settled))}
    corrections = _corrections(task)
    for correction, cost in corrections:
        possible |= {(usage + correction, nano_usd + cost) for usage, nano_usd in possible}
    if task.row.usage not in {usage for usage, _ in possible}:
        yield f"the task row has the usage {_usage(task.row.usage)}, its entries {_usage(used_by_entries)}"
    elif (task.row.usage, task.row.used_nano_usd) not in possible:
        costs = " or ".join(str(cost) for _, cost in sorted(possible, key=itemgetter(1)))
        yield f"the task row has the cost {task.row.used_nano_usd} n$, its entries {costs}"


def _corrections(task: TaskHistory) -> list[tuple[TokenUsage, int]]:
    """Returns the corrections of a task's bill by later reports, in tokens and money."""
    opened = of_kind(own(task.entries), ModelAttempt)
    prices = {(entry.step, attempt.attempt_number): attempt.prices for entry, attempt in opened}
    reported = [bill for bill in task.bills if bill.estimate is not None][:MAX_CORRECTIONS]
    estimates = [charge(prices.get((bill.step, bill.attempt_number)), bill.settled_with) for bill in reported]
    return [(bill.correction, bill.nano_usd - cost) for bill, cost in zip(reported, estimates, strict=True)]


def _settling_bodies(task: TaskHistory) -> Iterator[AssistantMessage | ModelFailure | AttemptLost]:
    for entry in own(task.entries):
        if isinstance(entry.body, AssistantMessage | ModelFailure | AttemptLost):
            yield entry.body


def _settled(attempt: ModelAttempt | None, reported: TokenUsage, billed: TokenUsage) -> SettledAttempt:
    prices = attempt.prices if attempt is not None else None
    return SettledAttempt(
        reservation_of(attempt) if attempt is not None else NOTHING,
        Amount(reported.total, charge(prices, reported)),
        Amount(billed.total, charge(prices, billed)),
    )


def _usage(usage: TokenUsage) -> str:
    cached = f" + {usage.cache_creation_input_tokens} written to and {usage.cache_read_input_tokens} read from a cache"
    return f"{usage.input_tokens} in, {usage.output_tokens} out" + (
        cached if usage.cache_creation_input_tokens or usage.cache_read_input_tokens else ""
    )


MAX_CORRECTIONS: Final = 10
"""How many corrections are considered, each with and without its effect on the row. A task rarely has one."""

_BUDGETS_CHECKS: Final = (
    Check("I17", "model attempts are opened and settled once each", ("entries",), attempts_are_settled_once),
    Check("I17", "no reservation exceeds a task's own caps", ("entries",), caps_hold),
    Check("I17", "the task row has the usage of its entries", ("tasks", "entries"), the_row_has_the_entries_usage),
)


# The ledger's bill and the provider's bill, compared call by call.


def answers_have_the_providers_usage(task: TaskHistory) -> Iterator[str]:
    """I18, for model calls with an answer. Lost model calls are estimated."""
    billed = {call.request_id: call for call in task.model_calls}
    for entry, answer in of_kind(own(task.entries), AssistantMessage) if drives_itself(task) else ():
        call = billed.get(answer.provider_request_id)
        if call is None:
            yield f"{place(entry)} is the answer to {answer.provider_request_id or '-'}, unknown to the provider"
        elif call.usage != answer.usage:
            yield (
                f"{place(entry)} has {answer.usage.total} tokens, "
                f"but the provider billed {call.usage.total} for {call.request_id}"
            )


def bills_match_the_entries(task: TaskHistory) -> Iterator[str]:
    """I18, for the separate bill of the ledger: one row for each settled attempt."""
    settled = Counter((entry.step, body.attempt_number, body.usage) for entry, body in _settled_attempts(task))
    kept = Counter((bill.step, bill.attempt_number, bill.settled_with) for bill in task.bills)
    for step, attempt_number, usage in settled - kept:
        yield f"step {step} attempt {attempt_number} was settled with {usage.total} tokens, but is not on the bill"
    for step, attempt_number, usage in kept - settled:
        yield f"step {step} attempt {attempt_number} is on the bill with {usage.total} tokens, but no entry has them"


def bills_have_the_entries_details(task: TaskHistory) -> Iterator[str]:
    """I18: the root, the mark `lost` and the provider's request id of a bill are those of the entries."""
    settled = {(entry.step, body.attempt_number): body for entry, body in _settled_attempts(task)}
    root_id = task.row.root_task_id if task.row is not None else ""
    for bill in task.bills:
        settled_entry = settled.get((bill.step, bill.attempt_number))
        which = f"step {bill.step} attempt {bill.attempt_number}"
        if root_id and bill.root_task_id != root_id:
            yield f"{which} is on the bill of {bill.root_task_id}, but the task's root is {root_id}"
        if settled_entry is not None and bill.lost != isinstance(settled_entry, AttemptLost):
            kind = "an estimate" if bill.lost else "a known usage"
            yield f"{which} is on the bill as {kind}, but its entry differs"
        if bill.estimate is not None and not bill.lost:
            yield f"{which} was not lost, but a report changed its bill"
        if settled_entry is None or bill.estimate is not None:  # then the request id is that of the report
            continue
        if bill.provider_request_id != _as_stored(getattr(settled_entry, "provider_request_id", "")):
            yield f"{which} has request {bill.provider_request_id or '-'} on the bill, its entry has another request"


def bills_use_the_reserved_prices(task: TaskHistory) -> Iterator[str]:
    """I18: the prices of the reservation, and no later prices, determine the charge."""
    attempts = {
        (entry.step, attempt.attempt_number): attempt for entry, attempt in of_kind(own(task.entries), ModelAttempt)
    }
    for bill in task.bills:
        attempt = attempts.get((bill.step, bill.attempt_number))
        if attempt is None:
            continue
        which = f"step {bill.step} attempt {bill.attempt_number}"
        if bill.nano_usd != (expected := charge(attempt.prices, bill.usage)):
            yield f"{which} is on the bill with {bill.nano_usd} n$, but costs {expected} by its prices"
        if bill.unpriced != (attempt.prices is None):
            yield f"{which} is on the bill as {'unpriced' if bill.unpriced else 'priced'}, but its entry differs"


def model_calls_are_in_the_ledger(task: TaskHistory) -> Iterator[str]:
    """I19: each model call of the provider has a model attempt, and no attempt was sent twice."""
    attempts = {(entry.step, attempt.attempt_number) for entry, attempt in of_kind(own(task.entries), ModelAttempt)}
    sent: Counter[tuple[int, int]] = Counter()
    for call in task.model_calls:
        number = (call.step, call.attempt_number)
        sent[number] += 1
        if not task.task_id:
            yield f"the provider saw the model call {call.request_id}, which belongs to no task"
        elif number not in attempts:
            yield (
                f"the provider saw step {call.step} attempt {call.attempt_number} ({call.request_id}), "
                "which is not in the ledger"
            )
    for (step, attempt_number), count in sent.items():
        if count > 1 and task.task_id:
            yield f"step {step} attempt {attempt_number} was sent to the provider {count} times"


def _as_stored(text: str) -> str:
    """Returns the text as Postgres stores it, without NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _settled_attempts(task: TaskHistory) -> Iterator[tuple[LedgerEntry, AssistantMessage | ModelFailure | AttemptLost]]:
    for entry in own(task.entries):
        if isinstance(entry.body, AssistantMessage | ModelFailure | AttemptLost):
            yield entry, entry.body


_ACCOUNTING_CHECKS: Final = (
    Check(
        "I18",
        "answers have the usage that the provider billed",
        ("model_calls", "entries"),
        answers_have_the_providers_usage,
    ),
    Check("I18", "the bill has a row for each settled attempt", ("bills", "entries"), bills_match_the_entries),
    Check(
        "I18",
        "bills have the root, the kind and the request of their entries",
        ("tasks", "bills", "entries"),
        bills_have_the_entries_details,
    ),
    Check("I18", "bills use the prices of the reservation", ("bills", "entries"), bills_use_the_reserved_prices),
    Check("I19", "each model call has its own attempt", ("model_calls", "entries"), model_calls_are_in_the_ledger),
)


# Budgets of roots: the usage and the reservations of all tasks of a root together, at the end and at every moment
# before.


class _Change(NamedTuple):
    """The change of a budget by one entry.

    `beyond`: the usage of an attempt above its reservation. `reported`: a later report's usage above `used`.
    """

    at: float
    cap: Amount = NOTHING
    used: Amount = NOTHING
    reserved: Amount = NOTHING
    beyond: Amount = NOTHING
    reported: Amount = NOTHING
    starts: bool = False


class _BudgetState(NamedTuple):
    """A budget at one moment."""

    cap: Amount = NOTHING
    used: Amount = NOTHING
    reserved: Amount = NOTHING

    def __str__(self) -> str:
        return f"{self.used} used and {self.reserved} reserved of {self.cap}"


class _Moment(NamedTuple):
    """The sum of the changes so far."""

    state: _BudgetState = _BudgetState()
    beyond: Amount = NOTHING
    reported: Amount = NOTHING

    def after(self, change: _Change) -> _Moment:
        now = self.state
        cap = now.cap + change.cap if change.starts else raised(now.cap, change.cap)
        state = _BudgetState(cap, now.used + change.used, now.reserved + change.reserved)
        return _Moment(state, self.beyond + change.beyond, self.reported + change.reported)

    @property
    def final(self) -> _BudgetState:
        """The state with the later reports."""
        return self.state._replace(used=self.state.used + self.reported)

    def exceeds_cap(self, unknown: Amount) -> bool:
        """Whether the budget exceeds its cap. `unknown`: the raises of the cap whose time is unknown."""
        taken = self.state.used + self.state.reserved - self.beyond
        cap = self.state.cap + unknown
        return taken.tokens > cap.tokens or taken.nano_usd > cap.nano_usd > 0


@dataclass(slots=True)
class _Root:
    """The collected data of a root.

    `row`: its budget row as it was read last. `after`: changes that may have followed.
    """

    changes: list[_Change] = field(default_factory=list)
    after: list[_Change] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    spawned: set[str] = field(default_factory=set)
    has_itself: bool = False
    has_settled: bool = True
    row: _BudgetState | None = None

    def add(self, task: TaskHistory, changes: list[_Change], *, is_root: bool) -> None:
        """Adds a task of the root.

        A reservation that is open in its last entry may have been settled right after it.
        """
        self.changes += changes
        reserved = _final_state(changes).reserved
        if reserved != NOTHING:
            self.after.append(_Change(math.nextafter(changes[-1].at, math.inf), reserved=NOTHING - reserved))
        self.known.add(task.task_id)
        self.spawned |= _spawned(task)
        self.has_itself |= is_root
        self.has_settled &= "settled" in task.collected or (task.row is not None and task.row.state in TERMINAL)

    def violations(self) -> Iterator[str]:
        """Yields the messages of all violations."""
        final = _final_state(self.changes)
        is_whole = self.has_itself and self.spawned <= self.known and (len(self.known) == 1 or self.has_settled)
        if is_whole and self.row is not None and self.row != final:
            yield f"the budget row has {self.row}, but its entries have {final}"
        if message := self._first_excess():
            yield message

    def _first_excess(self) -> str:
        """Returns a message for the first moment above the cap, or "".

        A raise of the cap in a task that was not collected counts from the beginning, because its time is unknown.
        """
        unknown = (self.row.cap - _final_state(self.changes).cap).above_nothing if self.row is not None else NOTHING
        now = _Moment()
        in_order = sorted([*self.changes, *self.after], key=attrgetter("at"))
        for at, together in groupby(in_order, key=attrgetter("at")):
            for change in together:
                now = now.after(change)
            if now.exceeds_cap(unknown):
                message = f"{now.beyond} of that exceeded reservations" if now.beyond != NOTHING else "too much"
                return f"at {at:.6f} the budget had {now.state}: {message}"
        return ""


class _Roots:
    """I17, for budgets of roots. For a root whose own entries explain its whole budget it keeps only the sums.

    Most roots have no sub-agents.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Root] = {}
        self._alone: dict[str, _BudgetState] = {}

    def add(self, task: TaskHistory) -> None:
        if task.row is None:
            self._read(task.task_id, task.budget.budget if task.budget is not None else None)
            return
        root_id = task.row.root_task_id or task.task_id
        is_root = root_id == task.task_id
        changes = list(_changes(task, is_root=is_root))
        row = None if task.budget is None else _state_of_row(task.budget.budget)
        if root_id not in self._roots and row is not None and row == _final_state(changes):
            self._alone[root_id] = row
            return
        self._root(root_id).add(task, changes, is_root=is_root)
        self._read(root_id, None if task.budget is None else task.budget.budget)

    def violations(self) -> Iterator[Violation]:
        for root_id, root in self._roots.items():
            for violation in root.violations():
                yield Violation("I17", root_id, violation)

    def _root(self, root_id: str) -> _Root:
        """Returns the collected data of a root. The sums of a root that seemed to be alone count from time 0."""
        root = self._roots.setdefault(root_id, _Root())
        alone = self._alone.pop(root_id, None)
        if alone is not None:
            taken = alone.used + alone.reserved
            root.changes.append(_Change(0.0, alone.cap, alone.used, alone.reserved, taken, starts=True))
            root.known, root.has_itself, root.row = {root_id}, True, alone
        return root

    def _read(self, root_id: str, budget: Budget | None) -> None:
        """Takes a budget row that was read with one of the root's tasks. A later row replaces an earlier one."""
        if budget is not None and self._alone.get(root_id) != _state_of_row(budget):
            self._root(root_id).row = _state_of_row(budget)


def _changes(task: TaskHistory, *, is_root: bool) -> Iterator[_Change]:
    """Yields the changes of a budget by one task in order."""
    for entry, spent in spending(task):
        at = entry.recorded_at
        if isinstance(entry.body, Submitted) and is_root:
            yield _Change(at, cap=cap_of(entry.body.spec.limits), starts=True)
        if (more := raise_of(entry.body)) != NOTHING:
            yield _Change(at, cap=more)
        match spent:
            case SettledAttempt(reserved=reserved, reported=reported, billed=billed) as settled:
                used, beyond = settled.at_least, (reported - reserved).above_nothing
                yield _Change(at, NOTHING, used, NOTHING - reserved, beyond, billed - used)
            case ModelAttempt() as attempt:
                yield _Change(at, reserved=reservation_of(attempt))
            case None:
                pass


def _spawned(task: TaskHistory) -> set[str]:
    """Returns the task ids of the task's sub-agents, collected or not."""
    return {
        task_id for entry in task.entries if isinstance(entry.body, SubAgentsSpawned) for task_id in entry.body.task_ids
    }


def _final_state(changes: list[_Change]) -> _BudgetState:
    """Returns the state after all changes, with later reports."""
    now = _Moment()
    for change in sorted(changes, key=attrgetter("at")):
        now = now.after(change)
    return now.final


def _state_of_row(budget: Budget) -> _BudgetState:
    return _BudgetState(
        Amount(budget.max_tokens, budget.max_nano_usd),
        Amount(budget.used_tokens, budget.used_nano_usd),
        Amount(budget.reserved_tokens, budget.reserved_nano_usd),
    )


_ROOTS_CHECKS: Final = (
    SumCheck(
        "I17",
        "budgets are the usage and reservations of their tasks, at every moment",
        ("tasks", "entries", "budgets"),
        _Roots,
    ),
)


CHECKS: Final = (
    *_BUDGETS_CHECKS,
    *_ACCOUNTING_CHECKS,
    *_ROOTS_CHECKS,
)
