"""What ledgers say of sub-agents: where one comes from, and what a call spawned. The rules are in sub_agents.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpawnedBy:
    """The call that spawned a sub-agent, and which of its goals this is. `traceparent` "": the parent had no trace."""

    task_id: str
    call_id: str
    index: int
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class SubAgentsSpawned:
    """The sub-agents of a call, in the order of its goals. `tools` None: all of the tenant's."""

    call_id: str
    task_ids: tuple[str, ...]
    max_tokens: int
    tools: tuple[str, ...] | None = None
