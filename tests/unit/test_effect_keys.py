"""Effect keys: which calls are one effect, and what follows for the second one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tools.calls.effect_list import keys_to_find
from services.tools.schemas import parse_arguments
from tenure.domain.effect_keys import (
    EffectKey,
    EffectScope,
    OnRepeat,
    TaskScopes,
    canonical_json,
    effect_of,
    idempotency_key,
    period_number,
)
from tenure.domain.json_pointers import check_pointer, value_at
from tenure.domain.long_output import BEGINNING_CHARACTERS, SHORTENED, shortened_output, whole_content
from tenure.domain.repeated_effects import (
    EffectFact,
    OtherCall,
    Repeat,
    already_happened,
    decide_repeat,
    fact_of_call,
    refused_repeat,
)
from tenure.domain.texts import kept_as
from tenure.domain.tool_arguments import MAX_JSON_DEPTH
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus, bounded

KEY = EffectKey(("/order",), EffectScope.TREE)


def digest(arguments: dict[str, Any], key: EffectKey = KEY, scope: str = "root", tenant: str = "t") -> bytes:
    return effect_of(key, tenant, "pay", scope, arguments).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (7, 7.0),
        (10**22, 1e22),
        ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1.0}),
        ("caf\u00e9", "cafe\u0301"),
        ([0.0], [-0.0]),
    ],
)
def test_equal_json_values_are_one_effect(one: Any, other: Any) -> None:
    assert digest({"order": one, "cents": 1}) == digest({"cents": 2, "order": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [(7, "7"), (1, True), (0, False), (None, ""), ([1, 2], [2, 1]), (0.1, 0.2), ({"a": 1}, {"a": 1, "b": None})],
)
def test_different_json_values_are_different_effects(one: Any, other: Any) -> None:
    assert digest({"order": one}) != digest({"order": other})


def test_an_effect_key_has_tenant_tool_and_scope() -> None:
    arguments = {"order": 7}
    digests = {
        digest(arguments),
        digest(arguments, tenant="u"),
        digest(arguments, scope="other"),
        digest(arguments, EffectKey(("/order",), EffectScope.TASK)),
        effect_of(KEY, "t", "refund", "root", arguments).digest,
    }
    assert len(digests) == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_canonical_json_is_stable(value: Any) -> None:
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "has no value at /order"),
        ({"order": "x" * 5000}, "more than 4096 bytes"),
        ({"order": math.inf}, "JSON compliant|too large"),
    ],
)
def test_arguments_without_a_key_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        digest(arguments)


def test_values_of_any_depth_are_accepted_or_refused() -> None:
    """Where the refusal begins depends on how deep the stack of the caller is."""
    value: Any = 7
    refused = 0
    for _ in range(1500):
        value = [value]
        try:
            digest({"order": value})
        except ValueError:
            refused += 1
    assert 0 < refused < 1400


def test_effects_are_found_by_keys_of_any_depth() -> None:
    for depth in range(MAX_JSON_DEPTH - 3, 1500):
        nested = "[" * depth + "]" * depth
        as_text, *as_json = keys_to_find({"order": nested})
        assert json.loads(as_text) == {"/order": nested}
        if depth < MAX_JSON_DEPTH:
            assert as_json == [effect_of(KEY, "t", "pay", "root", {"order": json.loads(nested)}).values_json]
        else:
            assert as_json == []


def test_arguments_nest_to_a_limit() -> None:
    nested = ["[" * depth + "]" * depth for depth in (MAX_JSON_DEPTH - 1, MAX_JSON_DEPTH, 400, 100_000)]
    assert [parse_arguments(f'{{"order": {one}}}') is None for one in nested] == [False, True, True, True]


def test_pointers_name_values() -> None:
    document: Any = {"a/b": {"~": [10, {"": 3}]}, "list": [1]}
    assert value_at(document, "") == document
    assert value_at(document, "/a~1b/~0/1/") == 3
    for pointer in ("/a", "/list/1", "/list/01", "/list/-1", "/list/x", "/a~1b/~0/1//"):
        with pytest.raises(LookupError):
            value_at(document, pointer)
    for pointer in ("order", "/a~2", "/~", "/" + "x" * 200):
        with pytest.raises(ValueError, match="JSON pointer"):
            check_pointer(pointer)


@pytest.mark.parametrize(
    "key",
    [
        EffectKey((), EffectScope.TASK),
        EffectKey(("/a", "/a"), EffectScope.TASK),
        EffectKey(("a",), EffectScope.TASK),
        EffectKey(("/a",), EffectScope.TENANT),
        EffectKey(("/a",), EffectScope.TREE, 60.0),
        EffectKey(("/a",), EffectScope.TENANT, 0.5),
    ],
)
def test_impossible_effect_keys_are_refused(key: EffectKey) -> None:
    with pytest.raises(ValueError, match=r"effect key|JSON pointer"):
        key.check()


def test_a_task_without_conversation_or_run_has_its_tree() -> None:
    assert TaskScopes("root").name_of(EffectScope.CONVERSATION) == TaskScopes("root").name_of(EffectScope.TREE)
    assert TaskScopes("root").name_of(EffectScope.SOURCE) == "root"
    assert TaskScopes("root", "root").name_of(EffectScope.CONVERSATION) != "root"


def test_an_idempotency_key_is_new_in_each_period_and_round() -> None:
    periods = [period_number(now, 60.0) for now in (0.0, 59.9, 60.0, 121.0)]
    assert (periods, period_number(99.0, 0.0)) == ([0, 0, 1, 2], 0)
    keys = {idempotency_key(b"d" * 32, period, number) for period, number in product(periods, range(2))}
    assert len(keys) == 6


def test_only_a_proof_frees_an_effect_key() -> None:
    def fact(status: OutcomeStatus, *, no_effect: bool = False, begun_before: bool = False) -> EffectFact:
        outcome = Outcome(status, "", no_effect=no_effect)
        return fact_of_call(CallState.FINISHED, outcome, begun_before=begun_before)

    assert fact(OutcomeStatus.SUCCEEDED) is EffectFact.HAPPENED
    unknown = (OutcomeStatus.FAILED, OutcomeStatus.TIMED_OUT, OutcomeStatus.CANCELLED, OutcomeStatus.IN_DOUBT)
    assert {fact(status) for status in unknown} == {EffectFact.UNKNOWN}
    assert {fact(status, no_effect=True) for status in unknown} == {EffectFact.NONE}
    assert {fact(status, no_effect=True, begun_before=True) for status in unknown} == {EffectFact.UNKNOWN}
    never_run = (OutcomeStatus.INVALID_ARGUMENTS, OutcomeStatus.NOT_ALLOWED, OutcomeStatus.NOT_RUN)
    assert {fact(status) for status in never_run} == {EffectFact.NONE}
    states = {state: fact_of_call(state, None, begun_before=True) for state in CallState}
    assert states == {
        CallState.ACCEPTED: EffectFact.RUNNING,
        CallState.STARTED: EffectFact.RUNNING,
        CallState.FINISHED: EffectFact.UNKNOWN,
        CallState.NOT_RUN: EffectFact.NONE,
        CallState.IN_DOUBT: EffectFact.UNKNOWN,
    }


def test_an_effect_begins_again_after_proof_or_by_its_key() -> None:
    for fact, effect_class, on_repeat in product(EffectFact, EffectClass, OnRepeat):
        repeat = decide_repeat(fact, effect_class, on_repeat, is_permitted=False)
        assert (repeat is Repeat.BEGIN) == (fact is EffectFact.NONE)
        assert (repeat is Repeat.BEGIN_AGAIN) == (fact is EffectFact.UNKNOWN and effect_class.may_run_again)
        assert (repeat is Repeat.WAIT) == (fact is EffectFact.RUNNING)
    by_tool = {one: decide_repeat(EffectFact.HAPPENED, EffectClass.KEYED, one, is_permitted=False) for one in OnRepeat}
    assert by_tool == {OnRepeat.RETURN: Repeat.ANSWER, OnRepeat.ASK: Repeat.ASK, OnRepeat.REFUSE: Repeat.REFUSE}


def test_a_person_permits_what_no_call_makes_now() -> None:
    for fact in EffectFact:
        repeat = decide_repeat(fact, EffectClass.UNSAFE, OnRepeat.ASK, is_permitted=True)
        assert repeat is (Repeat.WAIT if fact is EffectFact.RUNNING else Repeat.BEGIN)


def test_the_model_reads_which_call_made_the_effect() -> None:
    recorded = Outcome(OutcomeStatus.SUCCEEDED, "receipt 9", output_path="outputs/2.0.txt")
    other = OtherCall("task-1", "2.0", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), recorded)
    answer = already_happened(other, "task-2")
    assert (answer.status, answer.detail, answer.output_path) == (OutcomeStatus.SUCCEEDED, "ALREADY_HAPPENED", "")
    assert already_happened(other, "task-1").output_path == "outputs/2.0.txt"
    assert "by call 2.0 of task task-1, 2026-01-02 03:04:05+00:00" in answer.content
    assert answer.content.endswith("Its outcome:\n\nreceipt 9")
    refusals = {refused_repeat(other, fact).detail for fact in (EffectFact.HAPPENED, EffectFact.UNKNOWN)}
    assert refusals == {"ALREADY_HAPPENED", "EFFECT_UNKNOWN"}


WHOLE = "".join(f"{number:07d}\n" for number in range(1000))
LONG = Outcome(OutcomeStatus.SUCCEEDED, "", truncated=True, output_path=kept_as(WHOLE.encode()).path)


def repeat_of(outcome: Outcome, task_id: str) -> Outcome:
    other = OtherCall("task-1", "2.0", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), outcome)
    return bounded(already_happened(other, task_id), 64 * 1024)


@pytest.mark.parametrize("task_id", ["task-1", "task-2"])
def test_repeat_of_a_shortened_result_stays_shortened(task_id: str) -> None:
    """Without a path nothing reads the file, of which the text has the name, in place of the text."""
    shown = shortened_output(WHOLE.encode(), 1024, LONG.output_path)
    again = repeat_of(replace(LONG, content=shown, detail=SHORTENED), task_id)
    assert (again.detail, again.truncated, again.output_path) == ("ALREADY_HAPPENED", True, "")
    assert again.content.endswith(f"\n\n{shown}")
    assert ("in a file of that task" in again.content) is (task_id == "task-2")


def test_repeat_of_a_kept_result_has_all_of_it_in_its_task() -> None:
    kept = replace(LONG, content=WHOLE[:BEGINNING_CHARACTERS])
    assert whole_content(kept.content, WHOLE) == WHOLE
    here, elsewhere = repeat_of(kept, "task-1"), repeat_of(kept, "task-2")
    assert (here.truncated, here.output_path) == (True, LONG.output_path)
    assert whole_content(here.content, WHOLE) == here.content + WHOLE[BEGINNING_CHARACTERS:]
    assert (elsewhere.truncated, elsewhere.output_path) == (True, "")
    assert "This is a part of it; all of it is in a file of that task." in elsewhere.content
