"""Compares the ledger's tool calls with the records of the tool service after a restore (comparing.py).

The tool service's command `list-records` writes a line for each task, with its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from services.checkpoint.comparing import RESTORE, Comparison, rows_of
from services.checkpoint.entries import KINDS
from tenure.domain.waiting_calls import WAITING_TOOLS
from tenure.runtime.store.postgres import Pool
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import EFFECT_CLASSES

_CALL_FIELDS: Final = ("call_id", "tool", "effect_class", "state", "accepted_at")


class FindingKind(StrEnum):
    """The kinds of findings about a task or a call."""

    IN_FLIGHT = "IN_FLIGHT"
    """The task had been started. What it did after the moment of the ledger is lost, and it may do it again."""
    LOST_RECORD = "LOST_RECORD"
    """The ledger has the intent of the call and no outcome, and the tool service has no record: it may have run."""
    UNKNOWN_CALL = "UNKNOWN_CALL"
    """The tool service has a record of the call, the ledger has no intent: the ledger is the older one."""
    UNKNOWN_TASK = "UNKNOWN_TASK"
    """The tool service knows the task, the ledger does not: it was submitted later. Its calls are those listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the comparison. The fields from `tool` on are those of a call."""

    finding: FindingKind
    task_id: str
    tenant: str
    call_id: str = ""
    tool: str = ""
    effect_class: str = ""
    state: str = ""
    accepted_at: str = ""
    arguments_json: str = ""
    epoch: int = 0
    claim_id: str = ""


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """A task as the tool service knows it: its calls by id."""

    task_id: str
    tenant: str
    calls: Mapping[str, Mapping[str, str]]


@dataclass(slots=True)
class _LedgerTask:
    """A task as the ledger knows it."""

    task_id: str
    tenant: str
    is_live: bool
    was_started: bool
    open_calls: Sequence[str]
    waiting_call: str
    intents: dict[str, tuple[ledger_pb2.ToolIntent, int, str]] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)


def _record(value: Any) -> RecordedTask:
    calls = [{name: str(call[name]) for name in _CALL_FIELDS} for call in value["calls"]]
    by_id = {call["call_id"]: call for call in calls}
    return RecordedTask(str(UUID(value["task_id"])), str(value["tenant"]), by_id)


async def _tasks(pool: Pool, page: dict[str, Any]) -> list[_LedgerTask]:
    tasks = [
        _LedgerTask(task_id, tenant, is_live, claims > 0, open_calls, _call_of(wait) if wait else "")
        for task_id, tenant, is_live, claims, open_calls, wait in await rows_of(pool, RESTORE.page_of_tasks, page)
    ]
    await _read_intents(pool, [task for task in tasks if task.is_live])
    return tasks


def _findings(task: _LedgerTask, record: RecordedTask | None) -> Iterator[Finding]:
    if not task.is_live:
        return
    calls = record.calls if record is not None else {}
    if task.was_started:
        yield Finding(finding=FindingKind.IN_FLIGHT, task_id=task.task_id, tenant=task.tenant)
    for call_id in task.open_calls:
        if call_id in calls or call_id == task.waiting_call or call_id not in task.intents:
            continue
        intent, epoch, claim_id = task.intents[call_id]
        if intent.tool not in WAITING_TOOLS:
            yield Finding(
                finding=FindingKind.LOST_RECORD,
                task_id=task.task_id,
                tenant=task.tenant,
                call_id=call_id,
                tool=intent.tool,
                effect_class=task.effects.get(intent.tool, "UNSAFE"),
                arguments_json=intent.arguments_json,
                epoch=epoch,
                claim_id=claim_id,
            )
    for call_id in calls.keys() - task.intents.keys():
        yield _of_call(FindingKind.UNKNOWN_CALL, task.task_id, task.tenant, calls[call_id])


def _unknown(task: RecordedTask) -> Iterator[Finding]:
    if not task.calls:
        yield Finding(finding=FindingKind.UNKNOWN_TASK, task_id=task.task_id, tenant=task.tenant)
    for call in task.calls.values():
        yield _of_call(FindingKind.UNKNOWN_TASK, task.task_id, task.tenant, call)


def _of_call(kind: FindingKind, task_id: str, tenant: str, call: Mapping[str, str]) -> Finding:
    return Finding(
        finding=kind,
        task_id=task_id,
        tenant=tenant,
        call_id=call["call_id"],
        tool=call["tool"],
        effect_class=call["effect_class"],
        state=call["state"],
        accepted_at=call["accepted_at"],
    )


def _call_of(wait: bytes) -> str:
    return task_pb2.Wait.FromString(wait).call_id


async def _read_intents(pool: Pool, tasks: Sequence[_LedgerTask]) -> None:
    """Reads the intents and the tools' effect classes of some tasks into them."""
    by_id = {task.task_id: task for task in tasks}
    kinds = [KINDS["tool_intent"], KINDS["tools_defined"]]
    rows = await rows_of(pool, RESTORE.entries_of_kinds, {"task_ids": list(by_id), "kinds": kinds})
    for task_id, epoch, claim_id, content in rows:
        body, task = ledger_pb2.EntryBody.FromString(content), by_id[task_id]
        if body.HasField("tool_intent"):
            task.intents[body.tool_intent.call_id] = (body.tool_intent, epoch, claim_id)
        else:
            task.effects |= {tool.name: _effect_of(tool) for tool in body.tools_defined.tools}


def _effect_of(tool: tool_pb2.ToolDefinition) -> str:
    return EFFECT_CLASSES.to_domain(tool.effect_class).value


TOOL_CALLS: Final = Comparison("tenure serve tools list-records", FindingKind, _record, _tasks, _findings, _unknown)
