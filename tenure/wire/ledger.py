"""Converts the entries of the ledger, and reads the answer to Open. Each kind of entry has one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from tenure.domain import entries as domain
from tenure.domain.budget import BudgetWarning, TokenUsage
from tenure.domain.entries import Entry
from tenure.domain.errors import Unavailable
from tenure.domain.lease_ends import LeaseEnd
from tenure.domain.waits import BeginWait
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire import task, tenant_service, tool  # noqa: F401  their pairs are parts of entries
from tenure.wire.codec import pair, reader, register, union
from tenure.wire.common import STATES

# The content blocks of an answer: JSON of a model provider or of a loop outside of this project.


def content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """Returns the blocks of an answer. Raises ValueError for content that the fold cannot handle."""
    return _blocks_of(message.content_json)


def _blocks_of(content_json: str) -> tuple[dict[str, Any], ...]:
    try:
        blocks = json.loads(content_json or "[]")
    except RecursionError:
        raise ValueError("content_json nests too deeply") from None
    return blocks_of(blocks)


def blocks_of(value: Any) -> tuple[dict[str, Any], ...]:
    """Returns parsed content as blocks. Raises ValueError for content that the fold cannot handle."""
    if not isinstance(value, list) or not all(map(_is_block, value)):
        raise ValueError("content_json is not a JSON array of content blocks")
    return tuple(value)


def readable_content_of(message: ledger_pb2.AssistantMessage) -> tuple[dict[str, Any], ...]:
    """Returns the blocks of an answer, or none when they are malformed: old entries were not validated."""
    try:
        return content_of(message)
    except ValueError:
        return ()


def _is_block(block: Any) -> bool:
    """Whether a block is an object with a type, and its text, if any, is a string."""
    return isinstance(block, dict) and isinstance(block.get("type"), str) and isinstance(block.get("text", ""), str)


# The bodies of entries, in the order of EntryBody.


def _forked_to_wire(body: domain.Forked) -> ledger_pb2.Forked:
    forked_from = task_pb2.ForkedFrom(task_id=body.task_id, sequence=body.sequence)
    return ledger_pb2.Forked(forked_from=forked_from, copied_entries=body.copied_entries)


def _forked_to_domain(message: ledger_pb2.Forked) -> domain.Forked:
    return domain.Forked(message.forked_from.task_id, message.forked_from.sequence, message.copied_entries)


def _blocks_json(blocks: tuple[dict[str, Any], ...]) -> str:
    return json.dumps(blocks, ensure_ascii=False, separators=(",", ":"))


pair(domain.SpawnedBy, ledger_pb2.SpawnedBy)
pair(domain.Submitted, ledger_pb2.TaskSubmitted)
lease_end_to_wire, lease_end_to_domain = pair(
    LeaseEnd,
    ledger_pb2.LeaseEnd,
    rename={"worker": "worker_id", "renewals": "renewal_times", "lost_at": "loss_time"},
)
pair(
    domain.Transition,
    ledger_pb2.StateTransition,
    convert={"from_state": (STATES.to_wire, STATES.to_domain)},  # else an unknown state would be None
    skip="retry_delay_seconds next_retry_time budget",
)
pair(domain.ToolsDefined, ledger_pb2.ToolsDefined)
pair(domain.ModelAttempt, ledger_pb2.ModelAttempt, skip="budget")
pair(domain.ModelFailure, ledger_pb2.ModelFailure)
pair(domain.AttemptLost, ledger_pb2.AttemptLost)
pair(domain.AssistantMessage, ledger_pb2.AssistantMessage, convert={"content": (_blocks_json, _blocks_of)})
pair(domain.ToolIntent, ledger_pb2.ToolIntent)
pair(domain.ToolOutcome, ledger_pb2.ToolOutcome)
pair(domain.UserMessage, ledger_pb2.UserMessage)
pair(domain.CancelRequest, ledger_pb2.CancelRequest)
pair(domain.Requeue, ledger_pb2.OperatorRequest.Requeue)
pair(domain.OperatorCloseOut, ledger_pb2.OperatorRequest.CloseOut)
pair(domain.GrantBudget, ledger_pb2.OperatorRequest.GrantBudget)
pair(BeginWait, ledger_pb2.OperatorRequest.BeginWait, defaults=True)
operator_request_to_wire, operator_request_to_domain = pair(domain.OperatorRequest, ledger_pb2.OperatorRequest)
register(domain.Forked, ledger_pb2.Forked, _forked_to_wire, _forked_to_domain)
pair(domain.ControlFailure, ledger_pb2.ControlFailure)
pair(domain.ControlStep, ledger_pb2.ControlStep)
pair(domain.ResultRejected, ledger_pb2.ResultRejected)
pair(domain.ClearedResults, ledger_pb2.Compaction.ClearedResults)
pair(domain.Summary, ledger_pb2.Compaction.Summary)
pair(domain.Compaction, ledger_pb2.Compaction)
pair(BudgetWarning, ledger_pb2.BudgetWarning)
pair(domain.SubAgentsSpawned, ledger_pb2.SubAgentsSpawned, skip="deadline_time")
pair(domain.WaitEscalated, ledger_pb2.WaitEscalated)
body_to_wire: Callable[[domain.Body], ledger_pb2.EntryBody]
body_to_domain: Callable[[ledger_pb2.EntryBody], domain.Body]
body_to_wire, body_to_domain = union(domain.Body, ledger_pb2.EntryBody)
entry_to_domain = reader(Entry, ledger_pb2.Entry, skip="record_time")


def entry_for_ending(entry: ledger_pb2.Entry) -> domain.Entry | None:
    """Converts an entry for `tenure.domain.close_out.unfinished`. Returns None for a kind that it does not need.

    An answer with malformed content becomes an answer without content. Raises ValueError for a resolution of a call in
    a kind that only a newer version knows.
    """
    match entry.body.WhichOneof("body"):
        case "tools_defined" | "model_attempt" | "tool_intent" | "tool_outcome":
            return entry_to_domain(entry)
        case "operator_request" if entry.body.operator_request.HasField("resolve_call"):
            return entry_to_domain(entry)
        case "assistant_message":
            answer = entry.body.assistant_message
            body = domain.AssistantMessage(
                answer.attempt_number, readable_content_of(answer), answer.stop_reason, TokenUsage()
            )
            return domain.Entry(entry.sequence, entry.step, body)
        case _:
            return None


def entry_for_trace(entry: ledger_pb2.Entry, *, with_content: bool) -> domain.Entry | None:
    """Converts an entry for `tenure.domain.traces`. Returns None for one that only a newer version understands.

    Without content, the blocks of an answer are left out: to parse them costs the most.
    """
    try:
        if not entry.body.HasField("assistant_message"):
            return entry_to_domain(entry)
        bare = ledger_pb2.Entry()
        bare.CopyFrom(entry)
        bare.body.assistant_message.content_json = ""
        read = entry_to_domain(bare)
    except ValueError:
        return None
    assert isinstance(read.body, domain.AssistantMessage)
    content = readable_content_of(entry.body.assistant_message) if with_content else ()
    return replace(read, body=replace(read.body, content=content))


def record_nanoseconds(entry: ledger_pb2.Entry) -> int:
    """Returns when an entry was recorded, in nanoseconds since 1970."""
    return entry.record_time.ToNanoseconds()


def entries_to_domain(entries: Iterable[ledger_pb2.Entry]) -> list[domain.Entry]:
    return [entry_to_domain(entry) for entry in entries]


def new_entry(step: int, body: domain.Body) -> ledger_pb2.NewEntry:
    """Returns the message of an entry to append."""
    return ledger_pb2.NewEntry(step=step, body=body_to_wire(body))


# The answer to Open: a header, then the history in pages.


class OpenedTask(NamedTuple):
    """A task after Open, with its whole history."""

    task: task_pb2.Task
    next_commit_number: int
    entries: list[Entry]


def read_entries_to_end(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Converts only the entries that a close-out needs, so that no other entry can prevent it."""
    try:
        return [read for entry in entries if (read := entry_for_ending(entry)) is not None]
    except ValueError as error:
        raise _unreadable(error) from error


def read_entries(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Converts entries for the fold. Raises Unavailable for a kind that a newer version wrote.

    The error is not the task's fault: a process of that version can continue the task.
    """
    try:
        return entries_to_domain(entries)
    except ValueError as error:
        raise _unreadable(error) from error


def _unreadable(error: ValueError) -> Unavailable:
    message = f"this version cannot read the task's history, which a newer version may have written: {error}"
    return Unavailable(message, reason="NEWER_LEDGER")
