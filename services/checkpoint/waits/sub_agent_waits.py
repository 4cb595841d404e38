"""A parent's wait for the sub-agents of a call: begun by its owner's move, ended by the last of them.

Who ends the wait holds the parent's row, and looks at the sub-agents after locking it. One that ends later leaves news
for whoever looks next (sub_agent_events.py), so the wait is ended once, and never forgotten.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from services.checkpoint.commit.draft import LEDGER
from services.checkpoint.commit.task_row import current_wait
from services.checkpoint.queries import SUB_AGENTS, fetch_all
from services.checkpoint.waits import waits
from tenure.domain.states import TaskState
from tenure.domain.sub_agents import SubAgent, outcome_of_sub_agents
from tenure.domain.waits import SUB_AGENTS_ENDED, Wait, WaitKind

if TYPE_CHECKING:
    from services.checkpoint.commit.draft import Draft
    from tenure.runtime.postgres import Connection


class SubAgents(NamedTuple):
    """Those of one call, in the order of its goals; and how long ago they were created, in seconds."""

    all: list[SubAgent]
    age_seconds: float

    @property
    def have_ended(self) -> bool:
        return all(one.has_ended for one in self.all)


async def awaited(connection: Connection, draft: Draft, wait: Wait | None) -> SubAgents | None:
    """Whom a wait is for, as they are under the parent's lock; None when it is not for sub-agents."""
    if wait is None or wait.kind is not WaitKind.SUB_AGENTS:
        return None
    parameters = {"task_id": draft.row.task_id, "call_id": wait.call_id, "with_results": True}
    rows = await fetch_all(connection, SUB_AGENTS.sub_agents_of, parameters)
    sub_agents = [
        SubAgent(task_id, TaskState(state), reason, message, result.decode())
        for task_id, state, reason, message, result, _ in rows
    ]
    return SubAgents(sub_agents, max((row[-1] for row in rows), default=0.0))


async def are_awaited(connection: Connection, draft: Draft, wait: Wait) -> bool:
    """Whether one of them has not ended. Without their results, which may be long."""
    parameters = {"task_id": draft.row.task_id, "call_id": wait.call_id, "with_results": False}
    states = [TaskState(row[1]) for row in await fetch_all(connection, SUB_AGENTS.sub_agents_of, parameters)]
    return not all(SubAgent("", state).has_ended for state in states)


def wait_for(draft: Draft, wait: Wait | None, sub_agents: SubAgents | None) -> Wait | None:
    """The wait as it begins. Its time runs from the call, but for one that is begun again after a timeout."""
    if wait is None or sub_agents is None:
        return wait
    elapsed_seconds = 0.0 if draft.row.timeout_retries else sub_agents.age_seconds
    ids = tuple(one.task_id for one in sub_agents.all)
    return replace(wait, sub_agents=ids, elapsed_seconds=elapsed_seconds)


def end_wait(draft: Draft, sub_agents: SubAgents | None) -> bool:
    """Ends the wait that the task is in, once all have ended; whether it did."""
    wait = current_wait(draft.row)
    if wait is None or sub_agents is None or not sub_agents.have_ended:
        return False
    outcome = outcome_of_sub_agents(sub_agents.all)
    waits.end_wait_with_answer(draft, wait, waits.RecordedAnswer(SUB_AGENTS_ENDED, LEDGER, "", outcome))
    return True
