"""The checker notices what happens twice, too early, too late, or otherwise than it is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from checker.reading import outcome_hash
from tenure.domain import entries as facts
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import AgentSpec
from tenure.domain.tools import CallState, Outcome, OutcomeStatus
from tests.unit.checker_faults import PARAMETERS, body, call, check_fault, fault, first, record, renumber
from tests.unit.checker_history import Story, cancelled

NOT_RUN = Outcome(OutcomeStatus.NOT_RUN, "not run")
LIE = Outcome(OutcomeStatus.SUCCEEDED, "all is well")


def an_effect_happens_twice(story: Story) -> None:
    story.effects.append(replace(story.effects[1], place="records.jsonl:9"))


def an_effect_is_lost(story: Story) -> None:
    story.effects.pop()


def called_too_early(story: Story) -> None:
    story.calls["1.0"] = replace(story.calls["1.0"], accepted_at=story.calls["1.0"].accepted_at - 10)


def a_call_of_no_intent(story: Story) -> None:
    story.calls["1.7"] = replace(story.calls["2.0"], call_id="1.7")


def an_effect_of_no_intent(story: Story) -> seen.History:
    story.effects.append(replace(story.effects[1], call_id="1.7"))
    return replace(story.history(), calls=None)


def an_effect_of_no_record(story: Story) -> None:
    del story.calls["1.1"]
    index = first(story, facts.ToolOutcome, 1)
    story.entries[index] = replace(story.entries[index], body=facts.ToolOutcome("1.1", NOT_RUN))


def intended_twice(story: Story) -> seen.History:
    """By a loop of one's own: ours would read it in its conversation too."""
    use_own_loop(story)
    index = first(story, facts.ToolIntent)
    story.entries.insert(index, story.entries[index])
    renumber(story)
    return story.history()


def two_outcomes(story: Story) -> seen.History:
    use_own_loop(story)
    index = first(story, facts.ToolOutcome)
    story.entries.insert(index, story.entries[index])
    renumber(story)
    return story.history()


def use_own_loop(story: Story) -> None:
    goal = story.entries[0].body
    assert isinstance(goal, facts.Submitted)
    own = replace(goal, spec=replace(goal.spec, agent=AgentSpec(loop="own")))
    story.entries[0] = replace(story.entries[0], body=own)


def started_behind_a_raised_fence(story: Story) -> None:
    assert story.fence is not None
    story.calls["1.0"] = replace(story.calls["1.0"], started_at=story.fence.changed_at + 0.5)


def started_behind_a_closed_fence(story: Story) -> None:
    """By the very claim that closed it, before the end."""
    assert story.fence is not None
    started = replace(story.calls["1.0"], epoch=story.fence.epoch, started_at=story.fence.changed_at + 0.5)
    story.calls["1.0"] = started


def begun_without_the_mark(story: Story) -> None:
    """The tools called it off, and it happened all the same."""
    story.calls["1.0"] = replace(
        story.calls["1.0"], state=CallState.STARTED, started_at=None, outcome=None, outcome_hash=b""
    )
    index = first(story, facts.ToolOutcome)
    story.entries[index] = replace(story.entries[index], body=facts.ToolOutcome("1.0", NOT_RUN))


def called_off_and_happened(story: Story) -> None:
    begun_without_the_mark(story)
    story.calls["1.0"] = replace(story.calls["1.0"], state=CallState.NOT_RUN)


def called_without_a_result(story: Story) -> None:
    index = first(story, facts.ToolOutcome, 1)
    story.entries.insert(index + 1, replace(story.entries.pop(index), step=2))
    renumber(story)


def an_answer_without_its_intents(story: Story) -> None:
    """The commit with the answer had no room for the intent, and it was never written."""
    del story.entries[first(story, facts.ToolIntent, 2)]
    del story.entries[first(story, facts.ToolOutcome, 2)]
    del story.calls["2.0"]
    renumber(story)


def a_result_of_nothing(story: Story) -> None:
    story.entries[first(story, facts.ToolOutcome)] = replace(
        story.entries[first(story, facts.ToolOutcome)], body=facts.ToolOutcome("1.9", NOT_RUN)
    )


def ended_with_an_open_call(story: Story) -> None:
    del story.entries[first(story, facts.ToolOutcome)]
    renumber(story)


def answered_twice(story: Story) -> None:
    story.entries.pop()
    story.state = TaskState.RUNNING
    story.attempt(3, 2)
    story.answer(number=2)
    story.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, result="It is done.")


def two_calls_lost(_story: Story) -> seen.History:
    story = Story()
    story.submit()
    story.claim()
    for number in (1, 2):
        story.attempt(1, number)
        story.lose_attempt(number)
    story.lose()
    story.claim("worker-2")
    story.attempt(1, 3)
    story.answer(number=3)
    story.end()
    return story.history()


FAULTS = [
    fault("I12", "an effect twice", an_effect_happens_twice, "happened 2 times: records.jsonl:2, records.jsonl:9"),
    fault("I12", "an effect lost", an_effect_is_lost, "but has no effect"),
    fault("I12", "two outcomes", two_outcomes, "is another outcome of call 1.0"),
    fault("I13", "called too early", called_too_early, "was accepted before its intent was committed"),
    fault("I13", "a call of no intent", a_call_of_no_intent, "but no intent in the ledger"),
    fault("I13", "other arguments", call("1.0", arguments_hash=b"x"), "another tool or other arguments"),
    fault("I13 I14", "an older claim's call", call("2.0", epoch=1), "which is older"),
    fault("I13", "an effect of no intent", an_effect_of_no_intent, "without an intent"),
    fault("I13", "an older claim's effect", record("effects", epoch=1), "older than its intent's"),
    fault("I13", "intended twice", intended_twice, "is another intent of call 1.0"),
    fault("I14", "started behind a raised fence", started_behind_a_raised_fence, "had been raised to epoch 1.21"),
    fault("I14", "started when closed", started_behind_a_closed_fence, "had been closed", cancelled),
    fault("I14", "begun without the mark", begun_without_the_mark, "but it was never started"),
    fault("I12 I14", "called off and happened", called_off_and_happened, "is recorded as not run, but its effect"),
    fault(
        "I15",
        "the model reads something else",
        call("2.0", outcome=LIE, outcome_hash=outcome_hash(LIE)),
        "its record has another outcome",
    ),
    fault("I15", "said not run", body(facts.ToolOutcome, outcome=NOT_RUN), "it was started"),
    fault("I15", "an outcome nobody recorded", call("2.0", state=CallState.STARTED, outcome=None), "record is STARTED"),
    fault("I16", "asked without a result", called_without_a_result, "next model call, but call 1.1 has no outcome"),
    fault("I16", "an answer without its intents", an_answer_without_its_intents, "use-2-0 of the answer has no intent"),
    fault("I16", "a result of nothing", a_result_of_nothing, "call 1.9, which is not open"),
    fault("I16", "ended with an open call", ended_with_an_open_call, "without an outcome of call 1.0", cancelled),
    fault("I16", "not what was asked for", body(facts.ToolIntent, tool_use_id="other"), "does not have"),
    fault("I19", "an effect of no record", an_effect_of_no_record, "but the call has no record"),
    fault("I32", "answered twice", answered_twice, "answers step 3 again"),
    fault("I32", "two calls lost", two_calls_lost, "lost 2 model calls"),
]


@pytest.mark.parametrize(PARAMETERS, FAULTS)
def test_spoiled_call_is_reported(story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)
