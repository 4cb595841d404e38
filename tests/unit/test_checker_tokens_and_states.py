"""The checker notices gaps, tokens that do not add up, and moves that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from tenure.domain import entries as facts
from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.outputs import OutputState, TaskOutput
from tenure.domain.states import TaskState
from tenure.domain.tools import CallState, OutcomeStatus
from tests.unit.checker_faults import PARAMETERS, body, check_fault, entry, fault, first, joined, record, renumber
from tests.unit.checker_history import CAP, Story, cancelled, requeued

OUTPUT = TaskOutput("report", "https://example.org/1", OutputState.STATED, call_id="1.0")


def an_entry_is_missing(story: Story) -> seen.History:
    """Words of a user, which nothing else refers to."""
    end = story.entries.pop()
    story.entry(facts.UserMessage("hello"), owned=False)
    story.entries.append(replace(end, sequence=len(story.entries) + 1))
    history = story.history()
    return replace(history, entries=tuple(each for each in history.entries or () if each.sequence != 20))


def a_step_is_skipped(story: Story) -> None:
    for index in range(first(story, facts.ModelAttempt, 3), len(story.entries)):
        story.entries[index] = replace(story.entries[index], step=5)
    story.step = 5
    story.bills[-1] = replace(story.bills[-1], step=5)
    story.model_calls[-1] = replace(story.model_calls[-1], step=5)


def beyond_the_cap(story: Story) -> None:
    index = first(story, facts.ModelAttempt, 3)
    larger = replace(story.entries[index].body, max_output_tokens=CAP, reserved_tokens=CAP + 100)  # type: ignore[type-var]
    story.entries[index] = replace(story.entries[index], body=larger)


def never_settled(story: Story) -> None:
    """The worker was lost with its call, and the claim was taken from it without a word of that."""
    del story.entries[first(story, facts.AttemptLost)]
    del story.bills[1]
    renumber(story)


def settled_without_being_open(story: Story) -> None:
    index = first(story, facts.ModelAttempt, 3)
    del story.entries[index]
    story.model_calls.pop()
    renumber(story)
    index = first(story, facts.AssistantMessage, 2)
    story.entries[index] = replace(story.entries[index], body=facts.ModelFailure(1, "X", "", True))
    story.bills[-1] = replace(story.bills[-1], usage=TokenUsage(), provider_request_id="")


def a_hidden_retry(story: Story) -> None:
    story.model_calls.append(replace(story.model_calls[0], request_id="hidden"))


def an_unknown_model_call(story: Story) -> None:
    story.model_calls.append(replace(story.model_calls[0], request_id="unknown", step=9))


def a_nameless_model_call(story: Story) -> None:
    story.model_calls.append(replace(story.model_calls[0], request_id="nameless", task_id="", step=0))


def answer_without_an_attempt(story: Story) -> None:
    story.model_calls.pop(0)


def a_bill_is_missing(story: Story) -> seen.History:
    history = story.history()
    return replace(history, bills=(history.bills or ())[1:])


def a_childs_use_is_in_no_budget(story: Story) -> seen.History:
    """A root's budget is that of its whole tree."""
    child = Story(task_id=story.task_id[:-1] + "2", request_id="request-2")
    child.submit()
    child.claim()
    child.attempt(1)
    child.answer()
    child.end()
    part = replace(
        child.history(),
        tasks=(replace(child.row(), root_task_id=story.task_id),),
        bills=tuple(replace(each, root_task_id=story.task_id) for each in child.bills),
        budgets=(),
    )
    return joined(story.history(), part)


def something_follows_the_end(story: Story) -> None:
    story.entry(facts.UserMessage("thanks"), owned=False)


def attempt_after_the_cancel(story: Story) -> None:
    cancel = story.entries.pop(first(story, facts.CancelRequest))
    story.entries.insert(first(story, facts.ModelAttempt), cancel)
    renumber(story)


def succeeded_after_the_cancel(story: Story) -> None:
    end = story.entries[-1]
    moved: Any = end.body
    story.entries[-1] = replace(end, body=replace(moved, to_state=TaskState.SUCCEEDED))
    story.state = TaskState.SUCCEEDED


def after_the_end(**times: Any) -> Any:
    def change(story: Story) -> None:
        moment = story.entries[-1].recorded_at + 5
        changes: dict[str, Any] = dict.fromkeys(times, moment)
        story.calls["1.0"] = replace(story.calls["1.0"], **changes)

    return change


def may_still_begin(story: Story) -> None:
    story.calls["1.0"] = replace(
        story.calls["1.0"], state=CallState.ACCEPTED, outcome=None, outcome_hash=b"", started_at=None
    )
    story.effects.clear()
    index = first(story, facts.ToolOutcome)
    outcome = story.entries[index].body
    assert isinstance(outcome, facts.ToolOutcome)
    in_doubt = replace(outcome, outcome=replace(outcome.outcome, status=OutcomeStatus.IN_DOUBT))
    story.entries[index] = replace(story.entries[index], body=in_doubt)


def still_queued(_story: Story) -> seen.History:
    story = Story()
    story.submit()
    return replace(story.history(), subscriptions=())


def still_claimed(story: Story) -> None:
    story.grants[-1] = replace(story.grants[-1], deleted_revision=None)


def the_attempt_goes_on(story: Story) -> None:
    """The requeue does not say that it begins another attempt."""
    story.entries = [replace(entry, attempt=1) for entry in story.entries]


def attempt_without_a_requeue(story: Story) -> None:
    index = first(story, facts.OperatorRequest)
    story.entries[index] = replace(story.entries[index], body=facts.UserMessage("go on"))


def granted_to_one_that_was_cancelled(story: Story) -> None:
    """More budget is nothing that it had ended for."""
    index = first(story, facts.OperatorRequest)
    granted = facts.OperatorRequest("more", facts.GrantBudget(extra_tokens=100))
    story.entries[index] = replace(story.entries[index], body=granted)


def beyond_the_raised_cap(story: Story) -> None:
    index = first(story, facts.ModelAttempt, 1)
    story.entries[index] = replace(story.entries[index], body=facts.ModelAttempt(1, "model", 100, 50, CAP))


FAULTS = [
    fault("I7", "an entry is missing", an_entry_is_missing, "20 is missing"),
    fault("I7", "a number twice", record("entries", 5, sequence=5), "there are two entries with sequence 5"),
    fault("I7", "the row is ahead", record("tasks", sequence=99), "the task row has sequence 99"),
    fault("I8", "a step is skipped", a_step_is_skipped, "belongs to step 5, after step 2"),
    fault("I8", "a step goes back", entry(facts.ToolOutcome, 2, step=1), "belongs to step 1, after step 2"),
    fault("I8", "the row is at another step", record("tasks", step=9), "the task row has step 9"),
    fault("I17", "beyond the cap", beyond_the_cap, f"of {CAP}"),
    fault("I17", "too little set aside", body(facts.ModelAttempt, reserved_tokens=10), "reserves fewer tokens"),
    fault("I17", "never settled", never_settled, "while entry 10 (model_attempt) is open"),
    fault("I17", "settled without being open", settled_without_being_open, "but none is open"),
    fault("I17", "a child's use is in no budget", a_childs_use_is_in_no_budget, "its entries have 587 used"),
    fault(
        "I17 I19", "an attempt again", body(facts.ModelAttempt, 2, attempt_number=1), "is step 2 attempt 1, not after"
    ),
    fault("I17", "the row has used more", record("tasks", usage=TokenUsage(1, 1)), "the task row has the usage 1 in"),
    fault("I17", "the budget has used more", record("budgets", budget=Budget(CAP, 1, 0)), "but its entries have"),
    fault("I17", "the budget has some left", record("budgets", budget=Budget(CAP, 467, 9)), "9 reserved"),
    fault("I18", "billed otherwise", record("model_calls", usage=TokenUsage(1, 1)), "the provider billed 2"),
    fault("I18", "an answer of nobody", answer_without_an_attempt, "unknown to the provider"),
    fault("I18", "a bill is missing", a_bill_is_missing, "is not on the bill"),
    fault("I18", "a bill too many", record("bills", step=9), "no entry has them"),
    fault("I18", "another pays", record("bills", root_task_id="another"), "is on the bill of another"),
    fault("I18", "an estimate is reported as a fact", record("bills", 1, lost=False), "as a known usage"),
    fault("I18", "a fact is reported as an estimate", record("bills", lost=True), "as an estimate"),
    fault("I18", "a bill for another call", record("bills", provider_request_id="other"), "has another request"),
    fault("I19", "a hidden retry", a_hidden_retry, "was sent to the provider 2 times"),
    fault("I19", "an unknown model call", an_unknown_model_call, "which is not in the ledger"),
    fault("I19", "a nameless model call", a_nameless_model_call, "which belongs to no task"),
    fault(
        "I20", "no move of the table", body(facts.Transition, to_state=TaskState.RETRY_SCHEDULED), "not in the table"
    ),
    fault("I20", "from elsewhere", body(facts.Transition, 1, from_state=TaskState.RUNNING), "but the task was QUEUED"),
    fault("I20", "the row is elsewhere", record("tasks", state=TaskState.FAILED), "the task row has state FAILED"),
    fault("I21", "something follows the end", something_follows_the_end, "follows the end of the task"),
    fault("I21 I23", "an attempt that is not counted", the_attempt_goes_on, "follows the end of the task", requeued),
    fault("I20 I21 I23", "nobody asked for it", attempt_without_a_requeue, "without an operator's request", requeued),
    fault(
        "I20 I21 I23",
        "granted after a cancel",
        granted_to_one_that_was_cancelled,
        "without an operator's request",
        requeued,
    ),
    fault("I17", "beyond the raised cap", beyond_the_raised_cap, f"of {CAP + 100}", requeued),
    fault("I22", "the result changed", record("tasks", result="other"), "has another result"),
    fault("I41", "an output of no call", record("tasks", outputs=(OUTPUT,)), "the task lists TaskOutput("),
    fault("I23", "asked after the cancel", attempt_after_the_cancel, "begins a model call after", cancelled),
    fault("I23", "succeeded after the cancel", succeeded_after_the_cancel, "says that the task succeeded", cancelled),
    fault("I23", "taken after the end", after_the_end(accepted_at=1), "was accepted after the end"),
    fault("I23", "may still begin", may_still_begin, "may still start", cancelled),
    fault("I30", "still in the queue", still_queued, "is still QUEUED", seen_by_clients=True),
    fault("I30", "still claimed", still_claimed, "is still in etcd", seen_by_clients=True),
]


@pytest.mark.parametrize(PARAMETERS, FAULTS)
def test_spoiled_tokens_and_states_are_reported(
    story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any
) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)
