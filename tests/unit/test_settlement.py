"""The rule of a settlement: what is tried next, when a person decides, and how the answer of a check is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.argument_mapping import mapped_arguments
from tenure.domain.json_pointers import value_at
from tenure.domain.settlement import (
    USUAL_SECONDS,
    CheckFinding,
    SettlementPlan,
    Try,
    doubt_after,
    leaves_doubt,
    outcome_of_finding,
    read_check,
)
from tenure.domain.tools import CallSettlement, CheckWith, EffectClass, Outcome, OutcomeStatus

PURE, IDEMPOTENT, KEYED, UNSAFE = EffectClass
CHECK = CheckWith("find_payment")


@pytest.mark.parametrize(
    ("effect_class", "declared", "plan"),
    [
        (KEYED, None, (USUAL_SECONDS, True, False)),
        (KEYED, CallSettlement(60.0), (60.0, True, False)),
        (KEYED, CallSettlement(0.0), (0.0, False, False)),
        (KEYED, CallSettlement(0.0, CHECK), (0.0, False, True)),
        (KEYED, CallSettlement(1e9), (86_400.0, True, False)),
        (IDEMPOTENT, None, (0.0, False, False)),
        (IDEMPOTENT, CallSettlement(60.0), (60.0, True, False)),
        (UNSAFE, None, (0.0, False, False)),
        (UNSAFE, CallSettlement(60.0), (60.0, False, False)),
        (UNSAFE, CallSettlement(None, CHECK), (USUAL_SECONDS, False, True)),
        (PURE, CallSettlement(60.0, CHECK), (0.0, False, False)),
    ],
)
def test_plan_follows_class_and_declaration(effect_class: Any, declared: Any, plan: Any) -> None:
    assert SettlementPlan.of(effect_class, declared) == SettlementPlan(*plan)


@pytest.mark.parametrize(
    ("effect_class", "declared", "leaves"),
    [
        (KEYED, None, True),
        (KEYED, CallSettlement(0.0), True),
        (UNSAFE, None, True),
        (IDEMPOTENT, None, False),
        (IDEMPOTENT, CallSettlement(5.0), True),
        (PURE, CallSettlement(5.0, CHECK), False),
    ],
)
def test_model_decides_only_about_harmless_repeats(effect_class: Any, declared: Any, leaves: bool) -> None:
    assert leaves_doubt(effect_class, declared) is leaves


def test_repeats_end_with_one_check() -> None:
    plan = SettlementPlan.of(KEYED, CallSettlement(10.0, CHECK))
    assert plan.next_try(9.9, checked_at_end=False) is Try.REPEAT
    assert plan.next_try(10.0, checked_at_end=False) is Try.CHECK
    assert plan.next_try(10.1, checked_at_end=True) is None
    assert SettlementPlan.of(KEYED, CallSettlement(10.0)).next_try(10.0, checked_at_end=False) is None


def test_unsafe_call_is_checked_and_never_repeated() -> None:
    plan = SettlementPlan.of(UNSAFE, CallSettlement(10.0, CHECK))
    tries = {
        plan.next_try(elapsed, checked_at_end=late) for elapsed in (0.0, 9.9, 10.0, 99.0) for late in (False, True)
    }
    assert tries == {Try.CHECK, None}
    assert plan.next_try(10.0, checked_at_end=False) is Try.CHECK
    assert plan.next_try(10.0, checked_at_end=True) is None


def test_pauses_grow_and_end_with_the_settlement() -> None:
    plan = SettlementPlan.of(KEYED, CallSettlement(100.0))
    assert [plan.pause_seconds(0.0, tries, 1.0) for tries in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert plan.pause_seconds(0.0, 0, 0.0) == 0.5
    assert plan.pause_seconds(99.0, 6, 1.0) == 1.0
    assert plan.pause_seconds(101.0, 6, 1.0) == 0.0


def test_first_check_comes_at_once() -> None:
    plan = SettlementPlan.of(UNSAFE, CallSettlement(100.0, CHECK))
    assert [plan.pause_seconds(0.0, tries, 1.0) for tries in range(3)] == [0.0, 1.0, 2.0]


def answered(content: str, status: OutcomeStatus = OutcomeStatus.SUCCEEDED, *, truncated: bool = False) -> CheckFinding:
    return read_check("find_payment", Outcome(status, content, truncated=truncated))


@pytest.mark.parametrize(
    ("content", "happened", "result"),
    [
        ('{"happened": true}', True, ""),
        ('{"happened": true, "result": "receipt 7"}', True, "receipt 7"),
        ('{"happened": true, "result": {"receipt": 7}}', True, '{"receipt": 7}'),
        ('{"happened": true, "result": null, "more": 1}', True, ""),
        (' {"happened": false, "result": "x"}\n', False, ""),
        ('{"happened": null}', None, ""),
    ],
)
def test_check_says_whether_the_call_happened(content: str, happened: Any, result: str) -> None:
    found = answered(content)
    assert (found.happened, found.result) == (happened, result)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "true",
        "happened: true",
        "[]",
        '{"Happened": true}',
        '{"happened": "true"}',
        '{"happened": 1}',
        '{"happened": 0}',
        '{"happened": []}',
        '{"happened": true, "happened": false}',
        '{"happened": true',
        '{"happened": true} trailing',
        '{"happened": NaN}',
        "[" * 100_000,
    ],
)
def test_unreadable_check_knows_nothing(content: str) -> None:
    assert answered(content).happened is None
    assert "no answer that can be read" in answered(content).text


@pytest.mark.parametrize("status", [status for status in OutcomeStatus if status is not OutcomeStatus.SUCCEEDED])
def test_failed_check_knows_nothing(status: Any) -> None:
    assert answered('{"happened": true}', status).happened is None
    assert answered('{"happened": true}', truncated=True).happened is None


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists) | st.text())
def test_check_never_raises_and_guesses_nothing(happened: Any) -> None:
    found = answered(json.dumps({"happened": happened}))
    assert found.happened is (happened if isinstance(happened, bool) else None)


@given(st.text())
def test_any_text_of_a_check_is_read(content: str) -> None:
    assert answered(content).happened in {True, False, None}


def test_only_a_call_that_happened_gets_an_outcome() -> None:
    outcome = outcome_of_finding(answered('{"happened": true, "result": "receipt 7"}'), 3)
    assert outcome == Outcome(OutcomeStatus.SUCCEEDED, "receipt 7", detail="HAPPENED", call_attempt=3)
    plain = outcome_of_finding(answered('{"happened": true}'), 1)
    assert plain is not None
    assert plain.content == "This call happened: find_payment said that it happened."
    assert outcome_of_finding(answered('{"happened": false}'), 1) is None
    assert outcome_of_finding(answered('{"happened": null}'), 1) is None


def test_doubt_says_what_was_tried() -> None:
    assert doubt_after("It was lost.", "HTTP 500", 12.3, 0) == "It was lost."
    assert doubt_after("It was lost.", "", 12.3, 1).endswith(
        "Tenure tried once within 12 s to learn the end of the call."
    )
    assert doubt_after("It was lost.", "HTTP\n500", 12.3, 4).endswith("the end of the call. The last try: HTTP 500")


def test_mapping_takes_values_by_their_pointers() -> None:
    values: dict[str, Any] = {"arguments": {"order": {"id": 7}, "a/b": "x"}, "key": "t/1.0"}
    mapping: dict[str, Any] = {
        "id": "/arguments/order/id",
        "key": "/key",
        "kind": "payment",
        "most": 1,
        "slash": "/arguments/a~1b",
    }
    assert mapped_arguments(mapping, values) == {"id": 7, "key": "t/1.0", "kind": "payment", "most": 1, "slash": "x"}
    with pytest.raises(LookupError):
        mapped_arguments({"id": "/arguments/no"}, values)


@pytest.mark.parametrize("pointer", ["a", "/a/2", "/a/01", "/a/-", "/b", "/a~", "/a~2", "/a/0/x"])
def test_pointer_to_nothing_is_refused(pointer: str) -> None:
    with pytest.raises(LookupError):
        value_at({"a": [1, 2], "a~2": 3}, pointer)
    assert value_at({"a": [1, 2]}, "") == {"a": [1, 2]}
    assert value_at({"a": [1, 2], "": 5}, "/a/1") == 2
    assert value_at({"": 5}, "/") == 5
