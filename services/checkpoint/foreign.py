"""Facts of others: a user's words, a request to end. They need no claim, only the row's lock, and come once per id."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from services.checkpoint import waits
from services.checkpoint.announcement import Announcement, announcement_of
from services.checkpoint.draft import Draft
from services.checkpoint.exclusive import yielding_to_rivals
from services.checkpoint.finishing import carry_out_ending
from services.checkpoint.kinds import KINDS
from services.checkpoint.missing import missing
from services.checkpoint.operating import conclude, intervene, root_of
from services.checkpoint.queries import QUERIES, fetch_one, in_ledger_transaction
from services.checkpoint.rows import TaskRow, lock_tasks
from services.checkpoint.snapshots import read_task
from services.checkpoint.spawning import spawn
from services.checkpoint.writing import write
from tenure.domain.endings import Ending
from tenure.domain.errors import AlreadyExists, WrongState
from tenure.domain.messages import refuse_message
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.runtime.failpoint import failpoint
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2

if TYPE_CHECKING:
    from tenure.domain.entries import OperatorRequest
    from tenure.runtime.postgres import Connection, Pool


class Appended(NamedTuple):
    """The task as it is now, and what to announce."""

    task: task_pb2.Task
    announcement: Announcement


async def append_foreign(pool: Pool, tenant: str, asked: pb.AppendForeignRequest) -> Appended:
    """Raises NotFound, WrongState {state} after the end, AlreadyExists (REQUEST_ID_REUSED)."""
    digest = _digest(asked)

    async def work(connection: Connection) -> Appended:
        request = await _at_its_place(connection, tenant, asked)
        tasks, budgets = await lock_tasks(connection, [request.task_id])
        row = tasks.get(request.task_id)
        if row is None or row.tenant != tenant:
            raise await missing(connection, tenant, request.task_id)
        draft = Draft(row, budgets[row.root_task_id])
        if await _is_new(connection, request, digest) and not _is_settled(row, request):
            await _append(connection, draft, request)
            await carry_out_ending(connection, draft)
            with yielding_to_rivals():
                await write(connection, [draft])
            await _remember(connection, draft, request, digest)
        return Appended(await read_task(connection, tenant, row.task_id), announcement_of([draft]))

    await failpoint("checkpoint.before_foreign")
    appended = await in_ledger_transaction(pool, work)
    await failpoint("checkpoint.after_foreign")
    return appended


async def _at_its_place(connection: Connection, tenant: str, asked: pb.AppendForeignRequest) -> pb.AppendForeignRequest:
    """A grant is the root's, whichever of its tasks it was asked for."""
    if not asked.operator_request.HasField("grant_budget"):
        return asked
    request = pb.AppendForeignRequest()
    request.CopyFrom(asked)
    request.task_id = await root_of(connection, tenant, asked.task_id)
    return request


async def _append(connection: Connection, draft: Draft, request: pb.AppendForeignRequest) -> None:
    if request.WhichOneof("fact") == "wait_answer":
        allowed = waits.answer_wait(draft, request.wait_answer, request.actor, request.request_id)
        if allowed is not None and allowed.tool == SPAWN_SUB_AGENTS:
            await spawn(connection, draft, allowed, has_leave=True)
        return
    asked: OperatorRequest | None = None
    if request.WhichOneof("fact") == "cancel_request":
        body = ledger_pb2.EntryBody(cancel_request=request.cancel_request)
        reason = request.cancel_request.reason
        draft.ask_ending(Ending(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, reason, request.actor))
    elif request.WhichOneof("fact") == "operator_request":
        asked = await intervene(connection, draft, request.operator_request, request.actor)
        body = ledger_pb2.EntryBody(operator_request=request.operator_request)
    else:
        await _check_readers(connection, draft.row)
        words = ledger_pb2.UserMessage(text=request.user_message.text, request_id=request.request_id)
        body = ledger_pb2.EntryBody(user_message=words)
    kind = KINDS[body.WhichOneof("body") or ""]
    draft.append(kind, body.SerializeToString(), step=draft.row.step, actor=request.actor, by_claim=False)
    if asked is not None:
        conclude(draft, asked, request.actor)


def _is_settled(row: TaskRow, request: pb.AppendForeignRequest) -> bool:
    """Whether a cancel finds what it asks for done or on its way. Raises WrongState for what comes after the end."""
    cancels = request.WhichOneof("fact") == "cancel_request"
    if cancels and TaskState.CANCELLED.value in {row.state.value, row.ending_state}:
        return True
    if request.WhichOneof("fact") == "wait_answer":
        return False
    if row.state in TERMINAL and request.WhichOneof("fact") not in {"operator_request", "user_message"}:
        raise WrongState(f"the task has ended as {row.state}", metadata={"state": row.state.value})
    return False


async def _check_readers(connection: Connection, row: TaskRow) -> None:
    """Raises WrongState for words that nobody would read (NO_READER), or too many (MESSAGES_FULL)."""
    found = await fetch_one(connection, QUERIES.count_foreign, {"task_id": row.task_id})
    assert found is not None, "a count has a row"
    refusal = refuse_message(row.state, row.ending, found[0], found[1])
    if refusal is not None:
        raise refusal


async def _is_new(connection: Connection, request: pb.AppendForeignRequest, digest: bytes) -> bool:
    parameters = {"task_id": request.task_id, "request_id": request.request_id}
    found = await fetch_one(connection, QUERIES.find_foreign, parameters)
    if found is not None and found[0] != digest:
        raise AlreadyExists(
            "this request_id was used for another fact",
            reason="REQUEST_ID_REUSED",
            metadata={"task_id": request.task_id},
        )
    return found is None


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
    """Of the fact alone: a repeat may come through another identity of the same caller."""
    fact = request.WhichOneof("fact") or ""
    return hashlib.sha256(fact.encode() + b"\0" + getattr(request, fact).SerializeToString(deterministic=True)).digest()
