"""The rules of undos: which effects of generated ledgers are undone, in which order, and the course of the undo."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.agents import AgentPin
from tenure.domain.effects_of_task import EffectsOfTask, Present
from tenure.domain.entries import (
    Body,
    Entry,
    Forked,
    Submitted,
    ToolIntent,
    ToolOutcome,
    ToolsDefined,
    Transition,
    WaitResolution,
)
from tenure.domain.fold import fold
from tenure.domain.in_doubt import MAY_HAVE_HAPPENED, outcome_in_doubt
from tenure.domain.next_action import ExecuteTools
from tenure.domain.repeated_effects import (
    EffectFact,
    OtherCall,
    already_happened,
    question_about_repeat,
    refused_repeat,
)
from tenure.domain.states import TaskState
from tenure.domain.task import AgentSpec, ControlWork, Priority, TaskPolicy, TaskSpec
from tenure.domain.tools import Compensation, EffectClass, Outcome, OutcomeStatus, ToolDefinition
from tenure.domain.undo import (
    MAX_CALLS,
    EarlierUndo,
    TaskEffect,
    UndoVerdict,
    newest_that_fit,
    next_compensation,
    obstacle_of,
    outcomes_of_undo,
    plan_digest,
    plan_undo,
    refuse_plan,
    spec_of_undo,
    undoable,
    undone_calls,
)
from tenure.domain.waits import WaitAnswerKind, WaitKind

SOURCE = "018f0000-0000-7000-8000-000000000001"
V = UndoVerdict
OK = Outcome(OutcomeStatus.SUCCEEDED, '{"id": "x"}')
LOST = Outcome(OutcomeStatus.FAILED, "")
REFUSED = Outcome(OutcomeStatus.FAILED, "", no_effect=True)
REFUND = '{"id":"x","n":1}'


def tool(name: str, effect: EffectClass = EffectClass.UNSAFE, undo: str = "") -> ToolDefinition:
    compensation = Compensation(undo, '{"id":"/outcome/id","n":"/arguments/n"}') if undo else None
    return ToolDefinition(name, "", "{}", effect, compensation=compensation)


TOOLS = ToolsDefined((tool("pay", undo="refund"), tool("mail"), tool("look", EffectClass.PURE)))


def arguments_of(content: str, pointer: str) -> str:
    """The arguments of a compensation that takes a part of the outcome."""
    compensation = Compensation("refund", json.dumps({"id": pointer}))
    defined = ToolsDefined((ToolDefinition("pay", "", "{}", EffectClass.UNSAFE, compensation=compensation),))
    (effect,) = planned(defined, *call(1, outcome=Outcome(OutcomeStatus.SUCCEEDED, content)))
    return effect.undo_arguments_json or effect.why


def entries(*bodies: Body) -> list[Entry]:
    """A ledger in which each intent is a step of its own."""
    step, made = 0, []
    for sequence, body in enumerate(bodies, 1):
        step += isinstance(body, ToolIntent)
        made.append(Entry(sequence, step, body))
    return made


def call(step: int, name: str = "pay", outcome: Outcome | None = OK) -> tuple[Body, ...]:
    intent = ToolIntent(f"{step}.0", "", name, json.dumps({"n": step}))
    return (intent,) if outcome is None else (intent, ToolOutcome(intent.call_id, outcome))


def planned(
    *bodies: Body, earlier: EarlierUndo | None = None, present: Present | None = None, since_step: int = 0
) -> tuple[TaskEffect, ...]:
    before = {} if earlier is None else {"1.0": earlier}
    effects = EffectsOfTask(since_step, present, undone_calls(before))
    for entry in entries(*bodies):
        effects.add(entry)
    return plan_undo(effects.newest_first(), before, present)


_OUTCOMES = st.one_of(
    st.none(), st.builds(Outcome, st.sampled_from(list(OutcomeStatus)), st.sampled_from(['{"id": 1}', "no JSON"]))
)
_CALLS = st.lists(st.tuples(st.sampled_from(["pay", "mail", "look", "unknown"]), _OUTCOMES), max_size=12)


@given(_CALLS)
def test_every_effect_is_listed_once_and_newest_first(calls: list[tuple[str, Outcome | None]]) -> None:
    bodies = [body for step, (name, outcome) in enumerate(calls, 1) for body in call(step, name, outcome)]
    effects = planned(TOOLS, *bodies)
    wanted = [f"{step}.0" for step, (name, _) in enumerate(calls, 1) if name in {"pay", "mail"}]
    assert [each.call_id for each in effects] == wanted[::-1]
    for each in effects:
        name, outcome = calls[int(each.call_id[:-2]) - 1]
        is_done = outcome is not None and not outcome.is_error
        can = name == "pay" and is_done and outcome is not None and outcome.content != "no JSON"
        assert (each.verdict is V.CAN_BE_UNDONE) == can == (not each.why), each


@given(_CALLS, st.integers(0, 12), st.booleans())
def test_undo_makes_its_calls_in_order_to_the_end(
    calls: list[tuple[str, Outcome | None]], fails_at: int, go_on: bool
) -> None:
    bodies = [body for step, (name, outcome) in enumerate(calls, 1) for body in call(step, name, outcome)]
    effects = list(undoable(planned(TOOLS, *bodies)))
    spec = spec_of_undo(TaskSpec("g"), SOURCE, effects, "q", Priority.LOW, go_on=go_on)
    assert spec.undo is not None
    made: list[Body] = [Submitted(spec, "r"), ToolsDefined((tool("refund"),))]
    undone: list[str] = []
    while not isinstance(move := next_compensation(fold(entries(*made))), Transition):
        if isinstance(move, ToolIntent):
            made.append(move)
            continue
        assert isinstance(move, ExecuteTools)
        (intent,) = move.intents
        undone.append(intent.undoes)
        failed = len(undone) == fails_at
        made.append(ToolOutcome(intent.call_id, Outcome(OutcomeStatus.FAILED, "no") if failed else OK))
    most = fails_at if 0 < fails_at <= len(effects) and not go_on else len(effects)
    assert undone == [f"{SOURCE}/{each.call_id}" for each in effects][:most]
    is_whole = not 0 < fails_at <= len(effects)
    assert (move.to_state, move.reason) == (
        (TaskState.SUCCEEDED, "UNDONE") if is_whole else (TaskState.FAILED, "UNDO_INCOMPLETE")
    )
    report = json.loads(move.result)
    reported = [*report["undone"], *(each["call_id"] for each in report["failed"]), *report["left"]]
    assert sorted(reported) == sorted(each.call_id for each in effects)
    outcomes = {body.call_id: body.outcome for body in made if isinstance(body, ToolOutcome)}
    assert len(outcomes_of_undo(spec.undo, outcomes)) == most


OTHER = OtherCall("018f0000-0000-7000-8000-000000000009", "1.0", datetime(2026, 5, 1, tzinfo=UTC))
_LOST = ("CONNECTION_LOST", "BAD_ANSWER", "UNREACHABLE", "HTTP_302", "HTTP_500", MAY_HAVE_HAPPENED)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(OutcomeStatus.FAILED, "", no_effect=True), V.FAILED),
        (Outcome(OutcomeStatus.TIMED_OUT, "", no_effect=True), V.FAILED),
        (Outcome(OutcomeStatus.NOT_ALLOWED, ""), V.FAILED),
        (Outcome(OutcomeStatus.FAILED, ""), V.IN_DOUBT),
        (Outcome(OutcomeStatus.INVALID_ARGUMENTS, "", call_attempt=2), V.IN_DOUBT),
        (Outcome(OutcomeStatus.NOT_RUN, ""), V.FAILED),
        (Outcome(OutcomeStatus.INVALID_ARGUMENTS, ""), V.FAILED),
        (Outcome(OutcomeStatus.IN_DOUBT, ""), V.IN_DOUBT),
        (Outcome(OutcomeStatus.TIMED_OUT, ""), V.IN_DOUBT),
        (Outcome(OutcomeStatus.CANCELLED, ""), V.IN_DOUBT),
        *((Outcome(OutcomeStatus.FAILED, "", detail=detail), V.IN_DOUBT) for detail in _LOST),
        (already_happened(OTHER, SOURCE), V.NO_EFFECT),
        (already_happened(replace(OTHER, outcome=OK), SOURCE), V.NO_EFFECT),
        (refused_repeat(OTHER, EffectFact.HAPPENED), V.FAILED),
        (outcome_in_doubt(1, question_about_repeat(OTHER, EffectFact.HAPPENED)), V.NO_EFFECT),
        (outcome_in_doubt(1, "The bank was asked."), V.IN_DOUBT),
        (Outcome(OutcomeStatus.SUCCEEDED, '{"id": ', truncated=True), V.NO_VALUE),
        (None, V.OPEN),
    ],
)
def test_outcome_decides_whether_there_is_an_effect(outcome: Outcome | None, verdict: UndoVerdict) -> None:
    [effect] = planned(TOOLS, *call(1, outcome=outcome))
    assert effect.verdict is verdict


@pytest.mark.parametrize(
    ("earlier", "verdict"),
    [
        (EarlierUndo("u", TaskState.RUNNING), V.BEING_UNDONE),
        (EarlierUndo("u", TaskState.WAITING_USER, Outcome(OutcomeStatus.FAILED, "")), V.BEING_UNDONE),
        (EarlierUndo("u", TaskState.RUNNING, OK), V.UNDONE),
        (EarlierUndo("u", TaskState.FAILED, OK), V.UNDONE),
        (EarlierUndo("u", TaskState.CANCELLED), V.CAN_BE_UNDONE),
        (EarlierUndo("u", TaskState.FAILED, Outcome(OutcomeStatus.FAILED, "", no_effect=True)), V.CAN_BE_UNDONE),
        (EarlierUndo("u", TaskState.FAILED, Outcome(OutcomeStatus.FAILED, "")), V.UNDO_IN_DOUBT),
        (EarlierUndo("u", TaskState.FAILED, LOST, True, "refund", REFUND), V.CAN_BE_UNDONE),
        (EarlierUndo("u", TaskState.FAILED, LOST, True, "refund_v1", REFUND), V.UNDO_IN_DOUBT),
        (EarlierUndo("u", TaskState.FAILED, LOST, True, "refund", '{"id":"x","n":2}'), V.UNDO_IN_DOUBT),
        (EarlierUndo("u", TaskState.FAILED, REFUSED, True, "refund_v1", REFUND), V.CAN_BE_UNDONE),
        (EarlierUndo("u", TaskState.FAILED, already_happened(OTHER, SOURCE), may_run_again=True), V.UNDO_IN_DOUBT),
        (EarlierUndo("u", TaskState.FAILED, Outcome(OutcomeStatus.IN_DOUBT, "")), V.UNDO_IN_DOUBT),
        (EarlierUndo("u", TaskState.CANCELLED, None, True, "refund_v1", REFUND), V.CAN_BE_UNDONE),
        (EarlierUndo("u", None), V.UNDO_IN_DOUBT),
    ],
)
def test_earlier_undo_decides_whether_another_may_follow(earlier: EarlierUndo, verdict: UndoVerdict) -> None:
    [effect] = planned(TOOLS, *call(1), earlier=earlier)
    assert (effect.verdict, effect.undo_task_id) == (verdict, "u")


def test_compensation_that_another_call_made_is_reported_apart() -> None:
    effects = list(undoable(planned(TOOLS, *call(1), *call(2))))
    spec = spec_of_undo(TaskSpec("g"), SOURCE, effects, "q", Priority.LOW, go_on=False)
    refunds = [ToolIntent(f"{step}.0", "", "refund", "{}", f"{SOURCE}/{3 - step}.0") for step in (1, 2)]
    outcomes = [ToolOutcome("1.0", OK), ToolOutcome("2.0", already_happened(OTHER, SOURCE))]
    bodies = [body for pair in zip(refunds, outcomes, strict=True) for body in pair]
    move = next_compensation(fold(entries(Submitted(spec, "r"), *bodies)))
    assert isinstance(move, Transition)
    assert (move.to_state, move.reason) == (TaskState.FAILED, "UNDO_INCOMPLETE")
    report = json.loads(move.result)
    assert (report["undone"], [each["call_id"] for each in report["already_happened"]]) == (["2.0"], ["1.0"])
    assert "find out whether it undid them" in move.message


def test_present_declaration_goes_before_that_of_the_ledger() -> None:
    other = Compensation("credit", "{}")
    [effect] = planned(TOOLS, *call(1), present={"pay": other, "credit": None})
    assert (effect.undo_tool, effect.declaration_changed, effect.verdict) == ("credit", True, V.CAN_BE_UNDONE)
    [withdrawn] = planned(TOOLS, *call(1), present={"pay": None})
    assert (withdrawn.verdict, withdrawn.declaration_changed) == (V.NO_COMPENSATION, True)
    [gone] = planned(TOOLS, *call(1), present={"mail": None})
    assert (gone.verdict, gone.undo_tool) == (V.NO_TOOL, "refund")


def test_declaration_of_a_ledger_is_limited_by_its_task() -> None:
    """The worker of the task wrote it. What the tool service declares is not limited by the tools of the task."""
    effects = EffectsOfTask()
    for entry in entries(TOOLS, *call(1)):
        effects.add(entry)
    calls, present = effects.newest_first(), {"pay": Compensation("refund", "{}"), "refund": None}
    verdicts = [
        plan_undo(calls, {}, known, allowed)[0].verdict
        for known, allowed in ((None, ["pay"]), (None, ["pay", "refund"]), (None, None), (present, ["pay"]))
    ]
    assert verdicts == [V.NO_TOOL, V.CAN_BE_UNDONE, V.CAN_BE_UNDONE, V.CAN_BE_UNDONE]


OWN = ToolsDefined((replace(tool("pay"), compensation=Compensation("refund", '{"n":"/arguments/n"}', own_tool=True)),))


def test_own_tool_is_not_one_of_the_tool_service() -> None:
    """The tool service has neither tool. The list of tools of the task holds for the compensation, too."""
    (effect,) = planned(OWN, *call(1), present={"mail": None})
    assert (effect.verdict, effect.undo_by_own_tool) == (V.CAN_BE_UNDONE, True)
    effects = EffectsOfTask()
    for entry in entries(OWN, *call(1)):
        effects.add(entry)
    assert plan_undo(effects.newest_first(), {}, None, ["pay"])[0].verdict is V.NO_TOOL


def test_undo_with_own_tools_needs_the_function() -> None:
    code = ControlWork("shop", '{"a":1}')
    source = TaskSpec("", AgentSpec(loop="control"), control=code, agent_pin=AgentPin("shop", 1, "0" * 64, True))
    undos = [
        spec_of_undo(source, SOURCE, planned(tools, *call(1)), "q", Priority.HIGH, go_on=False)
        for tools in (OWN, TOOLS)
    ]
    assert [undo.dispatch_loop for undo in undos] == ["undo.shop", "tenure.undo"]
    assert [undo.undo and (undo.undo.function, undo.undo.input_json) for undo in undos] == [
        ("shop", '{"a":1}'),
        ("", ""),
    ]
    assert [undo.control for undo in undos] == [None, None], "an older worker must not run the function"


def test_declaration_without_a_mapping_undoes_nothing() -> None:
    broken = ToolsDefined((replace(tool("pay"), compensation=Compensation("refund", "[1]", own_tool=True)),))
    (effect,) = planned(broken, *call(1))
    assert (effect.verdict, effect.why) == (V.NO_VALUE, "refund: its declaration is not a mapping of arguments")


def test_edited_arguments_are_those_that_are_undone() -> None:
    intent, outcome = call(1)
    edited = WaitResolution(
        "w", "1.0", WaitKind.TOOL_APPROVAL, WaitAnswerKind.DECISION, "edit", edited_arguments_json='{"n": 99}'
    )
    [effect] = planned(TOOLS, intent, edited, outcome)
    assert json.loads(effect.undo_arguments_json) == {"id": "x", "n": 99}


def test_fork_and_since_step_leave_out_earlier_calls() -> None:
    copied = call(1)
    effects = planned(TOOLS, Forked(SOURCE, 9, len(copied)), *copied, *call(2), *call(3))
    assert [each.call_id for each in effects] == ["3.0", "2.0"]
    assert [each.call_id for each in planned(TOOLS, *call(1), *call(2), since_step=2)] == ["2.0"]


def test_undo_may_call_only_its_compensations() -> None:
    source = TaskSpec(
        "g",
        AgentSpec(approve_tools=("refund", "pay")),
        policy=TaskPolicy(approvers=("group:bank",)),
        labels=(("a", "b"),),
    )
    spec = spec_of_undo(source, SOURCE, planned(TOOLS, *call(1)), "q", Priority.HIGH, go_on=False)
    assert (spec.agent.tools, spec.agent.approve_tools) == (("refund",), ("refund",))
    assert (spec.policy.approvers, spec.labels, spec.queue) == (("group:bank",), (("a", "b"),), "q")


def test_plan_that_changed_or_has_nothing_is_refused() -> None:
    effects = planned(TOOLS, *call(1))
    assert refuse_plan(effects, plan_digest(effects)) is None
    other = (replace(effects[0], undo_arguments_json="{}"),)
    refusals = refuse_plan(other, plan_digest(effects)), refuse_plan(planned(TOOLS, *call(1, "mail")), "")
    assert [refusal and refusal.reason for refusal in refusals] == ["PLAN_CHANGED", "NOTHING_TO_UNDO"]


def test_only_what_is_to_be_undone_counts() -> None:
    """Thousands of other calls, and calls that are undone, do not hide an old payment."""
    refused = Outcome(OutcomeStatus.FAILED, "", no_effect=True)
    others = [body for step in range(3, 3 + 2 * MAX_CALLS) for body in call(step, "mail")]
    failed = [body for step in range(2000, 2000 + 2 * MAX_CALLS) for body in call(step, outcome=refused)]
    effects = planned(TOOLS, *call(1), *call(2), *others, *failed, earlier=EarlierUndo("u", TaskState.FAILED, OK))
    assert [each.call_id for each in undoable(effects)] == ["2.0"]
    assert refuse_plan(effects, "") is None
    assert len(effects) <= 1 + MAX_CALLS


def test_undo_by_policy_takes_the_newest_that_fit() -> None:
    count = MAX_CALLS + 20
    effects = planned(TOOLS, *(body for step in range(1, count + 1) for body in call(step)))
    refusal = refuse_plan(effects, "")
    assert refusal is not None
    assert refusal.reason == "UNDO_TOO_LARGE"
    kept = newest_that_fit(effects)
    assert [each.call_id for each in kept] == [f"{step}.0" for step in range(count, 20, -1)]
    spec = spec_of_undo(TaskSpec("g"), SOURCE, kept, "q", Priority.LOW, go_on=False, is_whole=False)
    assert f"the newest {MAX_CALLS} effects" in spec.goal


@pytest.mark.parametrize("state", TaskState)
def test_only_an_ended_task_is_undone_as_a_whole(state: TaskState) -> None:
    ended = state in {"SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELLED", "COST_EXCEEDED"}
    assert bool(obstacle_of(state, 0)) is not ended
    assert bool(obstacle_of(state, 3)) is not (ended or state is TaskState.WAITING_USER)


@pytest.mark.parametrize(
    ("content", "whole", "part"),
    [
        ('{"id": 7}', '{"id":{"id":7}}', '{"id":7}'),
        (json.dumps('{"id": 7}'), '{"id":"{\\"id\\": 7}"}', '{"id":7}'),
        ('"12345"', '{"id":"12345"}', "refund: the argument id: there is no value at /outcome/id"),
        ("12345", '{"id":12345}', "refund: the argument id: there is no value at /outcome/id"),
    ],
)
def test_text_of_json_as_an_outcome_has_its_parts(content: str, whole: str, part: str) -> None:
    """A tool of an agent that returns such a text is recorded as the JSON of a text."""
    assert (arguments_of(content, "/outcome"), arguments_of(content, "/outcome/id")) == (whole, part)
