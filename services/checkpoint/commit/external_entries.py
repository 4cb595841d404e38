"""Appends external entries: user messages, cancel requests, answers and operator requests.

They need no claim, only the row's lock. A request id appends its entry once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from services.checkpoint.agents.rows import reader_of
from services.checkpoint.approvals.groups import APPROVALS, members_for
from services.checkpoint.commit.close_out import carry_out_ending
from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.operator_requests import conclude, intervene, root_of
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.entries import KINDS, entry_of
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import QUERIES, fetch_all, fetch_one
from services.checkpoint.reads import read_task
from services.checkpoint.rows import TaskRow
from services.checkpoint.submit.create import as_sent, yielding_to_rivals
from services.checkpoint.submit.spawning import spawn
from services.checkpoint.waits import waits
from services.checkpoint.waits.call_plans import check_number_of_plans, keep_plan
from services.checkpoint.waits.operator_waits import keep_starts
from services.checkpoint.watch.announcement import Announcement, announcement_of
from tenure.domain.close_out import PendingEnding, refuse_message
from tenure.domain.errors import AlreadyExists, WrongState
from tenure.domain.images import ANSWER_TEXT
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.domain.waits import call_digest
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import in_transaction
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.domain.entries import OperatorRequest, ToolIntent
    from tenure.runtime.store.postgres import Connection, Pool


# External entries that a task got while its owner worked: read for a batch of commits at once, within bounds.

MAX_ENTRIES: Final = 512
MAX_BYTES: Final = 1024 * 1024


class ExternalRange(NamedTuple):
    """The entries of one commit's task after the sequence `after`, up to `until`. `place` is the commit's index in its
    batch.
    """

    place: int
    task_id: str
    after: int
    until: int


@dataclass(slots=True)
class ExternalEntries:
    """External entries by the commit's index.

    `cut`: commits with more entries than one response may have; their owner must read them first.
    """

    entries: dict[int, list[ledger_pb2.Entry]] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)

    def of(self, index: int) -> list[ledger_pb2.Entry]:
        """Returns the entries of one commit; mostly none."""
        return self.entries.get(index, [])


async def read_external_entries(connection: Connection, ranges: Sequence[ExternalRange]) -> ExternalEntries:
    """Reads all ranges with one statement; with none when there is nothing to read."""
    entries = ExternalEntries()
    if not ranges:
        return entries
    parameters = {
        "ords": [one.place for one in ranges],
        "task_ids": [one.task_id for one in ranges],
        "afters": [one.after for one in ranges],
        "untils": [one.until for one in ranges],
        "most_entries": MAX_ENTRIES,
        "most_bytes": MAX_BYTES,
    }
    for index, *columns in await fetch_all(connection, QUERIES.foreign_entries, parameters):
        entries.entries.setdefault(index, []).append(entry_of(columns))
    for one in ranges:
        if len(entries.of(one.place)) < one.until - one.after:
            entries.cut.add(one.place)
    return entries


class AppendResult(NamedTuple):
    """The task after the append and the announcement for watchers. `wait_has_begun`: of an operator's wait."""

    task: task_pb2.Task
    announcement: Announcement
    wait_has_begun: bool = False


async def append_external_entry(pool: Pool, tenant: str, wanted: pb.AppendForeignRequest) -> AppendResult:
    """Appends an external entry.

    Raises NotFound, WrongState {state} after the task's end, AlreadyExists (REQUEST_ID_REUSED).
    """
    digest = _digest(wanted)

    async def work(connection: Connection) -> AppendResult:
        request = await _at_root(connection, tenant, wanted)
        tasks, budgets = await lock_tasks(connection, [request.task_id])
        row = tasks.get(request.task_id)
        if row is None or row.tenant != tenant:
            raise await task_not_found(connection, tenant, request.task_id)
        draft = Draft(row, budgets[row.root_task_id])
        is_new = await _is_new(connection, request, digest)
        if is_new and request.only_check:
            await _check(connection, draft, request)
        elif is_new and not _is_settled(row, request):
            await _append(connection, draft, request)
            await carry_out_ending(connection, draft)
            with yielding_to_rivals():
                await write(connection, [draft])
            await keep_starts(connection, [draft])
            await _remember(connection, draft, request, digest)
        has_begun = request.operator_request.HasField("begin_wait") and not row.operator_wait
        task = await read_task(connection, tenant, row.task_id)
        return AppendResult(task, announcement_of([] if request.only_check else [draft]), has_begun)

    await failpoint("checkpoint.before_foreign")
    appended = await in_transaction(pool, work)
    await failpoint("checkpoint.after_foreign")
    return appended


async def _at_root(connection: Connection, tenant: str, wanted: pb.AppendForeignRequest) -> pb.AppendForeignRequest:
    """Redirects a budget grant to the root, because the root owns the budget of all its tasks."""
    if not wanted.operator_request.HasField("grant_budget"):
        return wanted
    request = pb.AppendForeignRequest()
    request.CopyFrom(wanted)
    request.task_id = await root_of(connection, tenant, wanted.task_id)
    return request


async def _check(connection: Connection, draft: Draft, request: pb.AppendForeignRequest) -> None:
    """Raises what `_append` raises. The draft is not written."""
    if request.WhichOneof("fact") == "wait_answer":
        await _answer(connection, draft, request)
    else:
        await _check_readers(connection, draft.row)


async def _answer(connection: Connection, draft: Draft, request: pb.AppendForeignRequest) -> waits.Approved:
    """Answers the wait. The files that came with the answer are those of a message. Returns what it approved.

    Raises LimitReached (TOO_MANY_PLANS).
    """
    if request.wait_answer.files:
        await _check_readers(connection, draft.row)
        files = request.wait_answer.files
        _append_message(draft, request, ledger_pb2.UserMessage(text=ANSWER_TEXT, files=files))
    members = await members_for(connection, draft.row.tenant, waits.approvers_of(draft))
    approved = waits.answer_wait(draft, request.wait_answer, request.actor, request.request_id, members)
    if approved.plan is not None:
        await check_number_of_plans(connection, draft.row.root_task_id)
    return approved


def _append_message(draft: Draft, request: pb.AppendForeignRequest, sent: ledger_pb2.UserMessage) -> None:
    message = ledger_pb2.UserMessage(
        text=sent.text, request_id=request.request_id, files=sent.files, interrupt=sent.interrupt
    )
    body = ledger_pb2.EntryBody(user_message=message).SerializeToString()
    draft.append(KINDS["user_message"], body, step=draft.row.step, actor=request.actor, by_claim=False)
    if sent.interrupt:
        draft.interrupting_sequence = draft.row.sequence


async def append_passed_message(connection: Connection, draft: Draft, request: pb.AppendForeignRequest) -> None:
    """Appends a message that came from the task's parent, once. A task that reads no more messages does not get it."""
    digest, row = _digest(request), draft.row
    reader = await reader_of(connection, row.task_id)
    refusal = refuse_message(row.state, row.ending, reader.external_entries, reader.loop, reader.kind)
    if refusal is None and await _is_new(connection, request, digest):
        _append_message(draft, request, request.user_message)
        await _remember(connection, draft, request, digest)


async def _append(connection: Connection, draft: Draft, request: pb.AppendForeignRequest) -> None:
    if request.WhichOneof("fact") == "wait_answer":
        approved = await _answer(connection, draft, request)
        for call in approved.calls:
            if call.tool == SPAWN_SUB_AGENTS:
                await spawn(connection, draft, call, is_approved=True)
        await _keep_approvals(connection, draft.row.task_id, approved.calls)
        await keep_plan(connection, draft.row.root_task_id, approved)
        return
    wanted: OperatorRequest | None = None
    if request.WhichOneof("fact") == "cancel_request":
        body = ledger_pb2.EntryBody(cancel_request=request.cancel_request)
        reason = request.cancel_request.reason
        draft.request_ending(PendingEnding(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, reason, request.actor))
    elif request.WhichOneof("fact") == "operator_request":
        wanted = await intervene(connection, draft, request.operator_request, request.actor)
        body = ledger_pb2.EntryBody(operator_request=request.operator_request)
    else:
        await _check_readers(connection, draft.row)
        _append_message(draft, request, request.user_message)
        return
    kind = KINDS[body.WhichOneof("body") or ""]
    draft.append(kind, body.SerializeToString(), step=draft.row.step, actor=request.actor, by_claim=False)
    if wanted is not None:
        conclude(draft, wanted, request.actor)


async def _keep_approvals(connection: Connection, task_id: str, calls: Sequence[ToolIntent]) -> None:
    """Keeps approved calls for the next owner's token: the tool service takes no worker's word for an approval."""
    if calls:
        kept = [f"{call.call_id}:{call_digest(call.tool, call.arguments_json)}" for call in calls]
        await connection.execute(APPROVALS.keep_approvals, {"task_id": task_id, "approved": kept})


def _is_settled(row: TaskRow, request: pb.AppendForeignRequest) -> bool:
    """Whether a cancel request has no further effect. Raises WrongState for an entry that cannot follow the end."""
    cancels = request.WhichOneof("fact") == "cancel_request"
    if cancels and TaskState.CANCELLED.value in {row.state.value, row.ending_state}:
        return True
    if request.WhichOneof("fact") == "wait_answer":
        return False
    if row.state in TERMINAL and request.WhichOneof("fact") not in {"operator_request", "user_message"}:
        raise WrongState(f"the task has ended as {row.state}", metadata={"state": row.state.value})
    return False


async def _check_readers(connection: Connection, row: TaskRow) -> None:
    """Raises WrongState for a message that no worker would read (NO_READER), or too many messages (MESSAGES_FULL)."""
    reader = await reader_of(connection, row.task_id)
    refusal = refuse_message(row.state, row.ending, reader.external_entries, reader.loop, reader.kind)
    if refusal is not None:
        raise refusal


async def _is_new(connection: Connection, request: pb.AppendForeignRequest, digest: bytes) -> bool:
    parameters = {"task_id": request.task_id, "request_id": request.request_id}
    row = await fetch_one(connection, QUERIES.find_foreign, parameters)
    if row is not None and row[0] != digest:
        raise AlreadyExists(
            "this request_id was used for another request on this task: use a new request_id",
            reason="REQUEST_ID_REUSED",
            metadata={"task_id": request.task_id},
        )
    return row is None


async def _remember(connection: Connection, draft: Draft, request: pb.AppendForeignRequest, digest: bytes) -> None:
    parameters = {
        "task_id": draft.row.task_id,
        "request_id": request.request_id,
        "tenant": draft.row.tenant,
        "hash": digest,
        "sequence": draft.row.sequence,
    }
    await connection.execute(QUERIES.remember_foreign, parameters)


def _digest(request: pb.AppendForeignRequest) -> bytes:
    """Returns a digest of the content alone: a repeat may come through another identity of the same caller."""
    fact = request.WhichOneof("fact") or ""
    content = getattr(request, fact)
    if fact == "user_message":
        files = as_sent(content.files)
        content = ledger_pb2.UserMessage(text=content.text, files=files, interrupt=content.interrupt)
    elif fact == "wait_answer":
        sent = as_sent(content.files)
        content = pb.WaitAnswer.FromString(content.SerializeToString())
        del content.files[:]
        content.files.extend(sent)
    return hashlib.sha256(fact.encode() + b"\0" + content.SerializeToString(deterministic=True)).digest()
