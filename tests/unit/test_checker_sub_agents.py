"""Sub-agents as the checker sees them: a whole tree passes, and each way to spoil it is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from checker.verify import Violation, verify
from tenure.domain import entries as facts
from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.entries import SpawnedBy, SubAgentsSpawned
from tenure.domain.states import Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS, sub_agent_id
from tenure.domain.task import Limits, TaskSpec
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.domain.waits import Wait, WaitAnswerKind, WaitKind
from tests.unit.checker_faults import body, first, renumber
from tests.unit.checker_history import CAP, TASK, Story

CALL = "1.0"
GOALS = ("count", "sum")
IDS = tuple(sub_agent_id(TASK, CALL, index) for index in range(len(GOALS)))
SHARE = 1000
WAIT = Wait(WaitKind.SUB_AGENTS, CALL, wait_id="w7", sub_agents=IDS)


class Tree:
    """A root whose one call spawns two sub-agents, told in turn by one clock."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.root = Story()
        self.children = [Story(task_id=task_id, request_id=f"sub-agent/{task_id}") for task_id in IDS]
        self.tell(self.root, "submit")
        self.tell(self.root, "claim")
        self.tell(self.root, "attempt", 1)
        self.tell(self.root, "answer", SPAWN_SUB_AGENTS)
        body(facts.ToolIntent, arguments_json=json.dumps({"goals": GOALS}))(self.root)
        self.tell(self.root, "entry", SubAgentsSpawned(CALL, IDS, SHARE), owned=False)
        for index in range(len(GOALS)):
            self._begin(index)

    def _begin(self, index: int) -> None:
        spec = TaskSpec(goal=GOALS[index], limits=Limits(max_tokens=SHARE))
        child = self.children[index]
        born = facts.Submitted(spec, child.request_id, SpawnedBy(TASK, CALL, index))
        self.tell(child, "entry", born, owned=False)
        self.tell(child, "move", TaskState.QUEUED, Reason.SPAWNED, owned=False)
        self.tell(child, "claim")

    def tell(self, story: Story, what: str, *arguments: Any, **more: Any) -> None:
        """The next that happens: later than all before."""
        story.now = self.now
        getattr(story, what)(*arguments, **more)
        self.now = story.now

    def leave(self) -> None:
        """The root waits for them."""
        move = facts.Transition(
            TaskState.WAITING_EXTERNAL, Reason.SUB_AGENTS_AWAITED, from_state=TaskState.RUNNING, wait=WAIT
        )
        self.tell(self.root, "entry", move)
        self.tell(self.root, "release")
        self.root.state = TaskState.WAITING_EXTERNAL

    def finish(self, index: int) -> None:
        self.tell(self.children[index], "attempt", 1)
        self.tell(self.children[index], "answer")
        self.tell(self.children[index], "end")

    def wake(self) -> None:
        """The last of them wakes the root."""
        answer = facts.WaitResolution("w7", CALL, WaitKind.SUB_AGENTS, WaitAnswerKind.SUB_AGENTS)
        self.tell(self.root, "entry", answer, owned=False)
        outcome = Outcome(OutcomeStatus.SUCCEEDED, "what they said")
        self.tell(self.root, "entry", facts.ToolOutcome(CALL, outcome), owned=False)
        self.tell(self.root, "move", TaskState.QUEUED, Reason.WAIT_RESOLVED, owned=False)
        self.tell(self.root, "claim", "worker-2")

    def end(self) -> None:
        self.tell(self.root, "attempt", 2)
        self.tell(self.root, "answer")
        self.tell(self.root, "end")

    def history(self, *, settled: bool = True) -> seen.History:
        """The whole tree, with the root's budget."""
        stories = (self.root, *self.children)
        bills = [replace(bill, root_task_id=TASK) for story in stories for bill in story.bills]
        used = sum((bill.usage for bill in bills), start=TokenUsage()).total
        return seen.History(
            tasks=tuple(replace(story.row(), root_task_id=TASK) for story in stories),
            entries=tuple(entry for story in stories for entry in story.entries),
            budgets=(seen.BudgetSnapshot(root_task_id=TASK, budget=Budget(CAP, used, 0)),),
            bills=tuple(bills),
            settled=settled,
        )


def waiting() -> Tree:
    """One sub-agent has ended, the other has not."""
    tree = Tree()
    tree.leave()
    tree.finish(0)
    return tree


def ended() -> Tree:
    tree = waiting()
    tree.finish(1)
    tree.wake()
    tree.end()
    return tree


def violations(tree: Tree, *, settled: bool = True) -> list[Violation]:
    return verify(tree.history(settled=settled))


@pytest.mark.parametrize("settled", [True, False])
def test_a_tree_that_went_well_breaks_no_rule(settled: bool) -> None:
    assert violations(ended(), settled=settled) == []


def test_a_tree_whose_root_waits_breaks_no_rule() -> None:
    assert violations(waiting(), settled=False) == []


def spawned_twice(tree: Tree) -> None:
    index = first(tree.root, SubAgentsSpawned)
    tree.root.entries.insert(index + 1, tree.root.entries[index])
    renumber(tree.root)


def spawned_late(tree: Tree) -> None:
    """After the outcome of the call."""
    spawned = tree.root.entries.pop(first(tree.root, SubAgentsSpawned))
    at = first(tree.root, facts.ToolOutcome) + 1
    tree.root.entries.insert(at, replace(spawned, recorded_at=tree.root.entries[at - 1].recorded_at))
    renumber(tree.root)


def spawned_by_no_call(tree: Tree) -> None:
    body(facts.ToolIntent, tool="search")(tree.root)


def spawned_for_other_goals(tree: Tree) -> None:
    body(facts.ToolIntent, arguments_json='{"goals": ["count"]}')(tree.root)


def spawned_under_another_name(tree: Tree) -> None:
    names = (IDS[0], sub_agent_id(TASK, CALL, 7))
    body(SubAgentsSpawned, task_ids=names)(tree.root)


def with_another_goal(tree: Tree) -> None:
    body(facts.Submitted, spec=TaskSpec(goal="subtract", limits=Limits(max_tokens=SHARE)))(tree.children[1])


def woken_early(tree: Tree) -> None:
    """Before the last of them had ended."""
    place = first(tree.children[1], facts.Transition, -1)
    tree.children[1].entries[place] = replace(tree.children[1].entries[place], recorded_at=tree.now)


@pytest.mark.parametrize(
    ("spoil", "invariant", "says"),
    [
        (spawned_twice, "I38", "spawns for call 1.0 again"),
        (spawned_late, "I38", "which has the outcome entry 9 (tool_outcome)"),
        (spawned_by_no_call, "I38", "but no call 1.0 asks for them"),
        (spawned_for_other_goals, "I38", "spawns other sub-agents than call 1.0 asks for"),
        (spawned_under_another_name, "I38", f"its parent {TASK} has no entry that spawned it"),
        (with_another_goal, "I38", "its goal is not that of call 1.0"),
        (woken_early, "I39", "continued before this sub-agent had ended (call 1.0)"),
    ],
)
def test_spoiled_tree_is_reported(spoil: Callable[[Tree], None], invariant: str, says: str) -> None:
    tree = ended()
    spoil(tree)
    response = violations(tree, settled=False)
    results = [violation.message for violation in response if violation.invariant == invariant]
    assert any(says in message for message in results), "\n".join(map(str, response))
    assert {violation.invariant for violation in response} == {invariant}, "\n".join(map(str, response))


def test_needless_wait_of_a_root_is_reported() -> None:
    tree = waiting()
    tree.finish(1)
    [entry] = [violation for violation in violations(tree) if violation.invariant == "I39"]
    assert (entry.task_id, "still waits for call 1.0" in entry.message) == (TASK, True)


def left_behind(*, task_attempt: int = 1) -> list[str]:
    """Whom I39 tells of when a root ended and its second sub-agent lives on."""
    tree = waiting()
    tree.wake()
    tree.end()
    tree.children[1].task_attempt = task_attempt
    return [
        expected.task_id
        for expected in violations(tree)
        if expected.invariant == "I39" and "has not ended" in expected.message
    ]


def test_orphaned_sub_agent_is_reported() -> None:
    assert left_behind() == [IDS[1]]


def test_requeued_sub_agent_is_not_orphaned() -> None:
    assert left_behind(task_attempt=2) == []


def test_a_root_without_collected_sub_agents_passes() -> None:
    """Its budget has what they used; the rule of sums is for trees that are known."""
    whole = ended().history()
    assert any(bill.task_id != TASK for bill in whole.bills or ())
    alone: dict[str, Any] = {
        name: tuple(record for record in getattr(whole, name) if record.task_id == TASK)
        for name in ("tasks", "entries", "bills")
    }
    assert verify(replace(whole, **alone)) == []
    unborn = [entry for entry in alone["entries"] if not isinstance(entry.body, SubAgentsSpawned)]
    assert {expected.invariant for expected in verify(replace(whole, **{**alone, "entries": tuple(unborn)}))} >= {"I17"}
