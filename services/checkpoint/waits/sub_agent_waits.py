"""A parent's wait for the sub-agents of a call: the owner's transition begins it, the last sub-agent ends it.

The transaction that ends the wait holds the parent's row and reads the sub-agents after it locked that row. A sub-agent
that ends later leaves a sub-agent event (sub_agent_events.py). So the wait ends exactly once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import current_wait
from services.checkpoint.queries import SUB_AGENTS, fetch_all
from services.checkpoint.waits import waits
from tenure.domain.states import TaskState
from tenure.domain.sub_agents import SubAgent, outcome_of_sub_agents
from tenure.domain.waits import SUB_AGENTS_ENDED, Wait, WaitKind
from tenure.runtime.store.postgres import Connection


class SubAgents(NamedTuple):
    """The sub-agents of one call in the order of its goals, and their age in seconds."""

    all: list[SubAgent]
    age_seconds: float

    @property
    def have_ended(self) -> bool:
        return all(one.has_ended for one in self.all)


async def awaited(connection: Connection, draft: Draft, wait: Wait | None) -> SubAgents | None:
    """Returns the sub-agents that a wait is for, read under the parent's lock; None for another kind of wait."""
    if wait is None or wait.kind is not WaitKind.SUB_AGENTS:
        return None
    rows = await _sub_agents_of(connection, draft, wait, with_results=True)
    sub_agents = [
        SubAgent(task_id, TaskState(state), reason, message, result.decode())
        for task_id, state, reason, message, result, _ in rows
    ]
    return SubAgents(sub_agents, max((row[-1] for row in rows), default=0.0))


async def are_awaited(connection: Connection, draft: Draft, wait: Wait) -> bool:
    """Whether one of the sub-agents has not ended. Reads no results, because they may be long."""
    states = [TaskState(row[1]) for row in await _sub_agents_of(connection, draft, wait, with_results=False)]
    return not all(SubAgent("", state).has_ended for state in states)


async def _sub_agents_of(
    connection: Connection, draft: Draft, wait: Wait, *, with_results: bool
) -> list[tuple[Any, ...]]:
    place = {"task_id": draft.row.task_id, "call_id": wait.call_id}
    return await fetch_all(connection, SUB_AGENTS.sub_agents_of, {**place, "with_results": with_results})


def wait_for(draft: Draft, wait: Wait | None, sub_agents: SubAgents | None) -> Wait | None:
    """Returns the wait to begin. Its time runs from the call, except when it begins again after a timeout."""
    if wait is None or sub_agents is None:
        return wait
    elapsed_seconds = 0.0 if draft.row.timeout_retries else sub_agents.age_seconds
    ids = tuple(one.task_id for one in sub_agents.all)
    return replace(wait, sub_agents=ids, elapsed_seconds=elapsed_seconds)


def end_wait(draft: Draft, sub_agents: SubAgents | None) -> bool:
    """Ends the task's wait if all sub-agents have ended. Returns whether it did."""
    wait = current_wait(draft.row)
    if wait is None or sub_agents is None or not sub_agents.have_ended:
        return False
    outcome = outcome_of_sub_agents(sub_agents.all)
    waits.end_wait_with_answer(draft, wait, waits.RecordedAnswer(SUB_AGENTS_ENDED, LEDGER, "", outcome))
    return True
