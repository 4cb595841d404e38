"""Rules of sub-agents: what a call may spawn, what each gets, what the call comes to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tenure.domain.budget import Budget
from tenure.domain.entries import ToolIntent
from tenure.domain.states import TaskState
from tenure.domain.sub_agents import (
    MAX_RESULT_BYTES,
    SPAWN_SUB_AGENTS,
    Parent,
    Share,
    SubAgent,
    decide_spawn,
    outcome_of_sub_agents,
    read_spawn,
    spec_of_sub_agent,
    sub_agent_id,
)
from tenure.domain.task import AgentSpec, ControlWork, Limits, Source, TaskSpec
from tenure.domain.tool_arguments import InvalidArguments
from tenure.domain.tools import Outcome
from tenure.domain.waiting_calls import move_to_wait, wait_of
from tenure.domain.waits import Wait, WaitKind

TASK = "019d3c00-0000-7000-8000-000000000001"
SPEC = TaskSpec("all of it", AgentSpec(tools=("a", "b")), Limits(max_tokens=1000, timeout_seconds=90.0))
PARENT = Parent(TASK, SPEC, 0, (Budget(1000, 100, 0), Budget(0, 100, 0)), 1)


def spawn_request(goals: Any = ("x", "y"), **more: Any) -> Any:
    return read_spawn(json.dumps({"goals": list(goals), **more}))


def test_names_follow_from_the_call_alone() -> None:
    assert sub_agent_id(TASK, "1.0", 0) == sub_agent_id(TASK, "1.0", 0)
    names = {sub_agent_id(TASK, call, index) for call in ("1.0", "1.1") for index in range(3)}
    assert len(names) == 6


def test_the_default_share_leaves_one_for_the_parent() -> None:
    assert decide_spawn(spawn_request(), PARENT) == Share(300, ("a", "b"))
    assert decide_spawn(spawn_request(max_tokens=450, tools=["b"]), PARENT) == Share(450, ("b",))


def test_no_task_grants_more_than_it_has_left() -> None:
    assert isinstance(decide_spawn(spawn_request(max_tokens=451), PARENT), Outcome)
    own = replace(PARENT, depth=1, budgets=(Budget(1000, 100, 500), Budget(200, 50, 0)))
    assert own.tokens_left == 150
    assert decide_spawn(spawn_request(), own) == Share(50, ("a", "b"))
    assert isinstance(decide_spawn(spawn_request(), replace(PARENT, budgets=(Budget(1000, 999, 0),))), Outcome)


def test_money_is_shared_equally() -> None:
    budgets = (Budget(1000, 0, 0, 9000, 0, 0),)
    share = decide_spawn(spawn_request(), replace(PARENT, budgets=budgets))
    assert isinstance(share, Share)
    assert share.max_nano_usd == 3000
    broke = replace(PARENT, budgets=(Budget(1000, 0, 0, 9000, 8999, 0),))
    assert isinstance(decide_spawn(spawn_request(), broke), Outcome)


@pytest.mark.parametrize(
    ("parent", "goals", "expected"),
    [
        (replace(PARENT, depth=3), 1, "depth 3"),
        (PARENT, 9, "one call may start at most 8"),
        (replace(PARENT, living=99), 2, "exceed 100"),
        (replace(PARENT, is_to_end=True), 1, "is about to end"),
    ],
)
def test_trees_have_limits(parent: Any, goals: int, expected: str) -> None:
    refused = decide_spawn(spawn_request(["x"] * goals), parent)
    assert isinstance(refused, Outcome)
    assert expected in refused.content


def test_tools_are_never_wider_than_the_parents() -> None:
    refused = decide_spawn(spawn_request(tools=["a", "c"]), PARENT)
    assert isinstance(refused, Outcome)
    assert "c" in refused.content
    everything = replace(PARENT, spec=replace(SPEC, agent=AgentSpec(tools=None)))
    assert decide_spawn(spawn_request(tools=["c"]), everything) == Share(300, ("c",))


def test_an_unknown_tool_is_refused_with_the_nearest() -> None:
    everything = replace(PARENT, spec=replace(SPEC, agent=AgentSpec(tools=None)), tools_defined=("read_file", "b"))
    refused = decide_spawn(spawn_request(tools=["raed_file", "b"]), everything)
    assert isinstance(refused, Outcome)
    assert "there is no tool 'raed_file'; did you mean read_file?" in refused.content
    assert isinstance(decide_spawn(spawn_request(tools=["a"]), replace(PARENT, tools_defined=("b",))), Outcome)
    assert decide_spawn(spawn_request(tools=["b"]), everything) == Share(300, ("b",))
    function = replace(everything, spec=replace(SPEC, agent=AgentSpec(loop="control", tools=None)))
    assert isinstance(decide_spawn(spawn_request(tools=["raed_file"]), function), Outcome)
    own_loop = replace(everything, spec=replace(SPEC, agent=AgentSpec(loop="mine", tools=None)))
    assert decide_spawn(spawn_request(tools=["raed_file"]), own_loop) == Share(300, ("raed_file",))


@pytest.mark.parametrize(
    "arguments",
    ["[]", "{}", '{"goals": [" "]}', '{"goals": ["a"], "max_tokens": -1}', '{"goals": ["a"], "tools": ["/"]}'],
)
def test_invalid_arguments_are_an_outcome(arguments: str) -> None:
    with pytest.raises(InvalidArguments):
        read_spawn(arguments)
    assert isinstance(wait_of(ToolIntent("1.0", "u", SPAWN_SUB_AGENTS, arguments)), Outcome)


def test_a_sub_agent_is_its_parent_but_for_its_goal_and_share() -> None:
    control = replace(
        SPEC,
        control=ControlWork("f"),
        agent=replace(SPEC.agent, loop="control"),
        source=Source(source_id="s", exclusive=True),
    )
    spec = spec_of_sub_agent(control, "x", Share(7, ("a",), 5), 12.5)
    assert (spec.goal, spec.control, spec.agent.loop, spec.agent.tools) == ("x", None, "messages", ("a",))
    assert (spec.limits.max_tokens, spec.limits.max_nano_usd, spec.limits.timeout_seconds) == (7, 5, 12.5)
    assert not spec.source.exclusive
    assert spec_of_sub_agent(SPEC, "x", Share(7, None), -3.0).limits.timeout_seconds == 1.0


def test_results_are_ordered_and_bounded() -> None:
    ends = {
        TaskState.SUCCEEDED: "r",
        TaskState.TIMED_OUT: "[timeout]",
        TaskState.RUNNING: "[timeout]",
        TaskState.COST_EXCEEDED: "[cost_exceeded]",
        TaskState.CANCELLED: "[cancelled]",
        TaskState.FAILED: "[failed: WHY: words]",
    }
    outcome = outcome_of_sub_agents([SubAgent(TASK, state, "WHY", "words", "r") for state in ends])
    entry = json.loads(outcome.content)["sub_agents"]
    assert [one["result"] for one in entry] == list(ends.values())
    assert [one.get("partial_result") for one in entry] == [None, "r", None, "r", "r", "r"]
    long = outcome_of_sub_agents([SubAgent(TASK, TaskState.SUCCEEDED, result="é" * MAX_RESULT_BYTES)] * 2)
    assert long.truncated
    assert len(json.loads(long.content)["sub_agents"][0]["result"].encode()) <= MAX_RESULT_BYTES // 2


def test_an_approval_precedes_the_wait_for_sub_agents() -> None:
    intent = ToolIntent("1.0", "u", SPAWN_SUB_AGENTS, '{"goals": ["x"], "deadline_seconds": 5}')
    first = wait_of(intent, approve_tools=(SPAWN_SUB_AGENTS,))
    then = wait_of(intent, approve_tools=(SPAWN_SUB_AGENTS,), allowed=("1.0",))
    assert isinstance(first, Wait)
    assert isinstance(then, Wait)
    assert (first.kind, then.kind, then.timeout_seconds) == (WaitKind.TOOL_APPROVAL, WaitKind.SUB_AGENTS, 5.0)
    assert move_to_wait(then).to_state is TaskState.WAITING_EXTERNAL


def test_message_about_unknown_arguments_is_valid_text() -> None:
    with pytest.raises(InvalidArguments) as refusal:
        read_spawn('{"goals": ["x"], "\\ud800": 1}')
    assert str(refusal.value).encode()
