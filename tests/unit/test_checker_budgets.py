"""The checker adds up what all tasks of a root used and set aside, moment by moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from checker.history import collected_in, split
from checker.verify import Examination, Violation, verify
from tenure.domain import entries as facts
from tenure.domain.budget import Budget, Prices, Rates, TokenUsage
from tests.unit.checker_history import ANSWER_USAGE, LOST_USAGE, Story

SET_ASIDE, USED = 150, ANSWER_USAGE.total
"""Of one model call in a story."""
SOURCES = ("tasks", "entries", "budgets", "bills")
ROOT, FIRST, SECOND = range(3)


class Family:
    """A root and two children, told in turn by one clock."""

    def __init__(self, cap: int) -> None:
        self.cap, self.max_nano_usd, self.now = cap, 0, 1_700_000_000.0
        self.members = [Story(task_id=f"018f0000-0000-7000-8000-{n:012}", request_id=f"r-{n}") for n in range(3)]
        for who in (ROOT, FIRST, SECOND):
            self.tell(who, "submit")
            self.tell(who, "claim")

    def tell(self, who: int, what: str, *arguments: Any, **more: Any) -> None:
        """The next that happens: later than all before."""
        member = self.members[who]
        member.now = self.now
        getattr(member, what)(*arguments, **more)
        self.now = member.now

    def ask(self, *who: int) -> None:
        for one in who:
            self.tell(one, "attempt", 1)

    def answer(self, *who: int) -> None:
        for one in who:
            self.tell(one, "answer")
            self.tell(one, "end")

    def parts(self, **row: int) -> list[seen.History]:
        """What is collected of each, with the one budget that they all have."""
        used = sum(bill.usage.total for member in self.members for bill in member.bills)
        budget = Budget(**{"max_tokens": self.cap, "used_tokens": used, "reserved_tokens": 0, **row})
        root_id = self.members[ROOT].task_id
        return [
            seen.History(
                tasks=(self._row(member),),
                entries=tuple(map(self._with_its_cap, member.entries)),
                bills=tuple(replace(bill, root_task_id=root_id) for bill in member.bills),
                budgets=(seen.BudgetSnapshot(root_task_id=root_id, budget=budget),),
            )
            for member in self.members
        ]

    def _row(self, member: Story) -> seen.TaskSnapshot:
        cost = sum(bill.nano_usd for bill in member.bills)
        return replace(member.row(), root_task_id=self.members[ROOT].task_id, used_nano_usd=cost)

    def _with_its_cap(self, entry: seen.LedgerEntry) -> seen.LedgerEntry:
        if not isinstance(entry.body, facts.Submitted):
            return entry
        spec = entry.body.spec
        limits = replace(spec.limits, max_tokens=self.cap, max_nano_usd=self.max_nano_usd)
        return replace(entry, body=replace(entry.body, spec=replace(spec, limits=limits)))


def violation_texts(family: Family, **row: int) -> list[str]:
    """What the checker says of budgets."""
    result = violations(family, **row)
    assert {each.invariant for each in result} <= {"I17"}
    return [each.message for each in result]


def invariants(family: Family, **row: int) -> set[str]:
    """What is broken."""
    return {each.invariant for each in violations(family, **row)}


def violations(family: Family, **row: int) -> list[Violation]:
    """What the checker says, of all at once and of one after the other."""
    parts = family.parts(**row)
    joined: dict[str, Any] = {name: tuple(one for part in parts for one in getattr(part, name)) for name in SOURCES}
    whole = seen.History(**joined)
    examination = Examination(collected_in(whole))
    for part in parts:
        for task in split(part):
            examination.add(task)
    result = verify(whole)
    assert list(examination.report().violations) == result
    return result


def all_at_once(cap: int) -> Family:
    family = Family(cap)
    family.ask(ROOT, FIRST, SECOND)
    family.answer(ROOT, FIRST, SECOND)
    return family


def test_reservations_at_once_fit_under_the_cap() -> None:
    assert violation_texts(all_at_once(3 * SET_ASIDE)) == []


def test_a_moment_above_the_cap_is_a_violation() -> None:
    [message] = violation_texts(all_at_once(3 * SET_ASIDE - 1))
    assert f"the budget had 0 used and {3 * SET_ASIDE} reserved of {3 * SET_ASIDE - 1}" in message


def test_a_cap_raised_by_a_requeue_holds_for_the_root_alone() -> None:
    family = Family(SET_ASIDE - 1)
    family.ask(ROOT)
    family.answer(ROOT)
    raised, as_it_was = family.parts(max_tokens=SET_ASIDE)[ROOT], family.parts()[ROOT]
    assert not [each for each in verify(raised) if " used: " in each.message]
    assert [each for each in verify(as_it_was) if " used: " in each.message]


def test_settled_reservation_is_free() -> None:
    family = Family(2 * USED + SET_ASIDE)
    for who in (ROOT, FIRST, SECOND):
        family.ask(who)
        family.answer(who)
    assert violation_texts(family) == []


def test_bill_above_its_reservation_may_pass_the_cap() -> None:
    family = Family(SET_ASIDE)
    family.ask(FIRST)
    usage = TokenUsage(10 * SET_ASIDE, 0)
    family.members[FIRST].bill(1, usage)
    family.tell(FIRST, "entry", facts.ModelFailure(1, "SERVER_ERROR", "", True, usage=usage))
    for who in (ROOT, FIRST, SECOND):
        family.tell(who, "end")
    assert violation_texts(family) == []


def test_call_after_such_a_bill_is_reported() -> None:
    family = Family(SET_ASIDE + 10)
    family.ask(ROOT)
    usage = TokenUsage(SET_ASIDE + 5, 0)
    family.members[ROOT].bill(1, usage)
    family.tell(ROOT, "entry", facts.ModelFailure(1, "SERVER_ERROR", "", True, usage=usage))
    family.ask(FIRST)
    family.answer(FIRST)
    for who in (ROOT, SECOND):
        family.tell(who, "end")
    assert any("5 of that exceeded reservations" in message for message in violation_texts(family))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"reserved_tokens": 9}, "9 reserved of"),
        ({"used_tokens": 3 * USED - 1}, f"the budget row has {3 * USED - 1} used"),
        ({"max_tokens": 10_000}, "0 reserved of 10000, but its entries have"),
    ],
)
def test_a_row_that_differs_from_its_entries_is_a_violation(row: dict[str, int], says: str) -> None:
    [message] = violation_texts(all_at_once(3 * SET_ASIDE), **row)
    assert says in message


def test_unknown_entries_of_a_live_task_are_allowed() -> None:
    """The first child was read while its model was asked; what it used meanwhile and set free is not in its entries."""
    family = Family(2 * SET_ASIDE)
    family.ask(FIRST)
    family.ask(ROOT, SECOND)
    family.answer(ROOT, SECOND)
    assert violation_texts(family, used_tokens=2 * USED + 10) == []


PRICES = Prices.flat(Rates(2 * 10**9, 10 * 10**9, 3 * 10**9, 10**8))
"""In nano dollars a token: 2,000 for input, 10,000 for output."""
ASIDE_NANO_USD, USED_NANO_USD = 100 * 2_000 + 50 * 10_000, 100 * 2_000 + 20 * 10_000


def priced(family: Family) -> Family:
    """The same, by models whose price is known."""
    for member in family.members:
        for place, entry in enumerate(member.entries):
            if isinstance(entry.body, facts.ModelAttempt):
                body = replace(entry.body, reserved_nano_usd=ASIDE_NANO_USD, prices=PRICES)
                member.entries[place] = replace(entry, body=body)
        member.bills = [replace(bill, nano_usd=USED_NANO_USD, unpriced=False) for bill in member.bills]
    return family


def money(family: Family, nano_usd: int, **row: int) -> list[str]:
    """What the checker says of a tree that has a cap in money."""
    family.max_nano_usd = nano_usd
    return violation_texts(family, **{"max_nano_usd": nano_usd, "used_nano_usd": 3 * USED_NANO_USD, **row})


def test_reserved_money_fits_under_its_cap() -> None:
    assert money(priced(all_at_once(10_000)), 3 * ASIDE_NANO_USD) == []


def test_reserved_money_above_the_cap_is_reported() -> None:
    [message] = money(priced(all_at_once(10_000)), 3 * ASIDE_NANO_USD - 1)
    assert f"reserved of 10000 ({3 * ASIDE_NANO_USD - 1} n$)" in message


@pytest.mark.parametrize("row", [{"used_nano_usd": 1}, {"reserved_nano_usd": 1}, {"max_nano_usd": 10**12}])
def test_money_that_differs_from_the_entries_is_a_violation(row: dict[str, int]) -> None:
    assert money(priced(all_at_once(10_000)), 3 * ASIDE_NANO_USD, **row)


def test_bill_by_other_prices_is_reported() -> None:
    family = priced(all_at_once(10_000))
    [bill] = family.members[FIRST].bills
    family.members[FIRST].bills = [replace(bill, nano_usd=bill.nano_usd - 1)]
    assert invariants(family, max_nano_usd=0, used_nano_usd=3 * USED_NANO_USD) == {"I17", "I18"}


def test_a_late_usage_report_is_in_bill_and_budget_only() -> None:
    family = Family(3 * SET_ASIDE)
    for one in (ROOT, FIRST, SECOND):
        family.ask(one)
        family.tell(one, "lose_attempt")
        family.tell(one, "end")
    estimate = LOST_USAGE
    [bill] = family.members[FIRST].bills
    later = TokenUsage(estimate.input_tokens, estimate.output_tokens + 30)
    family.members[FIRST].bills = [replace(bill, usage=later, estimate=estimate)]
    assert violation_texts(family) == []
    assert violation_texts(family, used_tokens=3 * estimate.total) != []
