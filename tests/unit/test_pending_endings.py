"""Endings without a live owner: from wherever a task stands, the moves to its end are all in the table."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tenure.domain.close_out import (
    WITHOUT_CRASH,
    OwnerDeaths,
    PendingEnding,
    ending_of_lost_claim,
    follow_up,
    outcomes_of_ended_calls,
)
from tenure.domain.entries import ToolIntent
from tenure.domain.in_doubt import Abandon, DidNotHappen, Happened, Resolution
from tenure.domain.states import MOVES, TERMINAL, Reason, TaskState
from tenure.domain.task import LeaseLostPolicy
from tenure.domain.tools import (
    IN_DOUBT,
    NOT_RUN,
    CallState,
    CallStatus,
    EffectClass,
    Outcome,
    OutcomeStatus,
    ToolDefinition,
)

ENDS = (TaskState.CANCELLED, TaskState.TIMED_OUT, TaskState.FAILED)
IDLE = tuple(state for state in TaskState if state not in TERMINAL and state is not TaskState.RUNNING)
CASES = tuple(itertools.product(IDLE, ENDS))
SHORT = ToolDefinition("tool", "d", "{}", EffectClass.UNSAFE, output_limit_bytes=1024)


@pytest.mark.parametrize(("state", "end"), CASES)
def test_an_unheld_task_ends_by_allowed_moves(state: TaskState, end: TaskState) -> None:
    ending = PendingEnding(end, "WHY", "", "")
    for _ in range(2):
        target = follow_up(state, ending, has_open_calls=False)
        assert target is not None
        assert target in MOVES[state]
        state = target
        if state in TERMINAL:
            break
    assert state is end


@pytest.mark.parametrize(("state", "end"), CASES)
def test_a_task_with_an_open_call_moves_where_it_can_be_opened(state: TaskState, end: TaskState) -> None:
    target = follow_up(state, PendingEnding(end, "WHY", "", ""), has_open_calls=True)
    assert target is (None if state is TaskState.QUEUED else TaskState.QUEUED)


@pytest.mark.parametrize(
    ("standing", "outcome"),
    [
        (None, NOT_RUN),
        ((CallState.ACCEPTED, None), NOT_RUN),
        ((CallState.NOT_RUN, None), NOT_RUN),
        ((CallState.STARTED, None), IN_DOUBT),
        ((CallState.IN_DOUBT, None), IN_DOUBT),
        ((CallState.FINISHED, Outcome(OutcomeStatus.FAILED, "no")), Outcome(OutcomeStatus.FAILED, "no")),
    ],
)
def test_an_ended_tasks_open_call_gets_the_fences_outcome(standing: Any, outcome: Any) -> None:
    standings = {} if standing is None else {"1.0": CallStatus(*standing), "9.9": CallStatus(CallState.STARTED)}
    [response] = outcomes_of_ended_calls([ToolIntent("1.0", "use-1", "tool", "{}")], standings, {}, ())
    assert (response.call_id, response.outcome) == ("1.0", outcome)


@pytest.mark.parametrize(
    ("decision", "state", "call_attempt", "expected"),
    [
        (Happened("paid"), CallState.IN_DOUBT, 2, (OutcomeStatus.SUCCEEDED, "HAPPENED", 3)),
        (Abandon(), CallState.IN_DOUBT, 2, (OutcomeStatus.IN_DOUBT, "ABANDONED", 3)),
        (DidNotHappen(runner_is_gone=True), CallState.IN_DOUBT, 2, (OutcomeStatus.IN_DOUBT, "", 1)),
        (Happened("paid"), CallState.IN_DOUBT, 3, (OutcomeStatus.IN_DOUBT, "", 1)),
        (Happened("paid"), CallState.STARTED, 2, (OutcomeStatus.IN_DOUBT, "", 1)),
        (Happened("paid"), CallState.NOT_RUN, 2, (OutcomeStatus.NOT_RUN, "", 1)),
    ],
)
def test_an_unsent_resolution_counts_for_its_attempt_at_the_end(
    decision: Any, state: Any, call_attempt: int, expected: Any
) -> None:
    intent, word = ToolIntent("1.0", "use-1", "tool", "{}"), Resolution(2, decision, "I looked", "olga")
    [ended] = outcomes_of_ended_calls([intent], {"1.0": CallStatus(state, None, call_attempt)}, {"1.0": word}, ())
    assert (ended.outcome.status, ended.outcome.detail, ended.outcome.call_attempt) == expected


@pytest.mark.parametrize(("tools", "limit_bytes"), [((), 64 * 1024), ((SHORT,), SHORT.output_limit_bytes)])
def test_an_operators_message_is_cut_to_the_tools_bound(tools: Any, limit_bytes: Any) -> None:
    intent = ToolIntent("1.0", "use-1", "tool", "{}")
    word = Resolution(1, Happened("ü" * 100_000), "I looked", "olga")
    standings = {"1.0": CallStatus(CallState.IN_DOUBT, None, 1)}
    [ended] = outcomes_of_ended_calls([intent], standings, {"1.0": word}, tools)
    assert ended.outcome.truncated
    assert len(ended.outcome.content.encode()) in {limit_bytes, limit_bytes - 1}
    assert ended.outcome.content.endswith(f"longer than {limit_bytes} bytes]")


def test_claim_lost_with_etcd_is_not_a_crash() -> None:
    assert Reason.CLAIM_LOST in WITHOUT_CRASH
    ending = ending_of_lost_claim(LeaseLostPolicy.TIME_OUT, OwnerDeaths(), Reason.CLAIM_LOST, "gone")
    assert ending is not None
    assert ending.to_state is TaskState.TIMED_OUT
