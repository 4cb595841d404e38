"""Sub-agents: where a task comes from, and what a call spawned."""

from __future__ import annotations

from tenure.domain import entries as facts
from tenure.domain.spawned import SpawnedBy, SubAgentsSpawned
from tenure.v1 import ledger_pb2
from tenure.wire.task import allowlist_to_wire, spec_to_domain, spec_to_wire


def submitted_to_domain(message: ledger_pb2.TaskSubmitted) -> facts.Submitted:
    spawned_by = None
    if message.HasField("spawned_by"):
        told = message.spawned_by
        spawned_by = SpawnedBy(told.task_id, told.call_id, told.index, told.traceparent)
    return facts.Submitted(spec_to_domain(message.spec), message.request_id, spawned_by)


def submitted_to_wire(fact: facts.Submitted) -> ledger_pb2.TaskSubmitted:
    message = ledger_pb2.TaskSubmitted(spec=spec_to_wire(fact.spec), request_id=fact.request_id)
    if fact.spawned_by is not None:
        by = fact.spawned_by
        told = ledger_pb2.SpawnedBy(task_id=by.task_id, call_id=by.call_id, index=by.index, traceparent=by.traceparent)
        message.spawned_by.CopyFrom(told)
    return message


def spawned_to_domain(message: ledger_pb2.SubAgentsSpawned) -> SubAgentsSpawned:
    tools = tuple(message.tools.names) if message.HasField("tools") else None
    return SubAgentsSpawned(message.call_id, tuple(message.task_ids), message.max_tokens, tools)


def spawned_to_wire(fact: SubAgentsSpawned) -> ledger_pb2.SubAgentsSpawned:
    """Without the deadline: only the ledger knows its database's time."""
    return ledger_pb2.SubAgentsSpawned(
        call_id=fact.call_id,
        task_ids=fact.task_ids,
        max_tokens=fact.max_tokens,
        tools=allowlist_to_wire(fact.tools),
    )
