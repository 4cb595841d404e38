"""ForkTask: creates a task whose ledger begins with a copy of another task's conversation.

The fork copies entries instead of referring to them. The copy is bounded and small compared with its model calls, and
one statement makes it inside the database. Afterwards every reader (fold, stream, audit, retention) finds a ledger that
is complete by itself. The fork neither locks nor changes the other task: entries never change, so any prefix can be
read.

Entries: 1 submitted (with the overrides of the fork) · 2 forked · the copied entries · the transition to QUEUED · a
message about copied calls that were undone · the message
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import uuid_utils

from services.checkpoint.agents.pinning import override_agent, pinned_fork
from services.checkpoint.agents.rows import reader_of
from services.checkpoint.commit.draft import LEDGER
from services.checkpoint.entries import KINDS
from services.checkpoint.not_found import task_not_found
from services.checkpoint.queries import FORKS, fetch_all
from services.checkpoint.reads import read_task
from services.checkpoint.submit.create import (
    CreateResult,
    NewLedger,
    NewTask,
    TreePosition,
    as_sent,
    find_earlier,
    find_repeat,
    in_creation,
    insert_ledgers,
    insert_tasks,
    prepared,
    row_of,
    submitted_of,
)
from services.checkpoint.submit.fork_rules import (
    MAX_BYTES,
    MAX_ENTRIES,
    ForkPiece,
    choose_point,
    ends_with_answer,
    is_final_answer,
    pieces_to_copy,
)
from services.checkpoint.submit.prepared_ids import take_prepared
from services.checkpoint.submit.source_lines import enter_line
from services.checkpoint.submit.undone_history import EFFECTS_UNDONE, MAX_NAMED, undone_of_history
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.tenants.quotas import admit, count_submit, warn_of_submit
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.agents import AgentKind, chosen_by_code
from tenure.domain.close_out import no_reader
from tenure.domain.errors import InvalidRequest, TenureError, WrongState
from tenure.domain.quotas import StartDecision
from tenure.domain.replay import check_no_replay
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Source
from tenure.domain.undo import note_of_undone
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import checkpoint_service_pb2, ledger_pb2, task_pb2, workspace_pb2
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import STATES
from tenure.wire.task import source_to_domain, spec_to_domain

_NAMES: Final = {number: name for name, number in KINDS.items()}
_HEAD: Final = 2
"""The number of entries before the copied ones."""
_OF_THE_MODEL: Final = ("model", "system", "parameters")
"""The overrides that no code reads. A function reads its list of tools."""
_MAX_STEPS: Final = 2**31 - 1
LONGEST: Final = 4 * MAX_ENTRIES
"""The longest ledger that is searched for a fork point, in entries."""


class _Cut(NamedTuple):
    """The history that a fork takes over: the other task's spec and its entries up to `point`.

    `stop_reason`: of the assistant message at the end of those entries; "" when they end otherwise. `note`: the message
    about the calls among them that were undone; "": none was.
    """

    spec: task_pb2.TaskSpec
    files: Sequence[workspace_pb2.SubmittedFile]
    point: int
    pieces: list[ForkPiece]
    model_step: int
    model_attempt: int
    stop_reason: str
    note: str

    @property
    def step(self) -> int:
        return max((piece.step for piece in self.pieces), default=0)


async def fork_task(pool: Pool, tenant: str, request: tasks_pb.ForkTaskRequest, defaults: TaskDefaults) -> CreateResult:
    """Creates a fork, or returns the one that the request id created before.

    Raises NotFound, AlreadyExists, WrongState (NO_FORK_POINT, NOTHING_TO_DO, FORK_TOO_LARGE), LimitReached, and
    Unavailable (FORK_NOT_PREPARED).
    """
    digest = digest_of(request)

    async def work(connection: Connection) -> CreateResult:
        earlier = await find_earlier(connection, tenant, request.request_id, digest, new_source(request))
        if earlier is not None:
            return CreateResult(await read_task(connection, tenant, earlier), Announcement())
        cut, spec = await _planned(connection, tenant, request, defaults)
        admission = await admit(connection, tenant, request.request_id, new_source(request))
        prepared_task_id, domain_spec = request.prepared_task_id, spec_to_domain(spec)
        await enter_line(connection, tenant, domain_spec.source)
        task_id = prepared_task_id or str(uuid_utils.uuid7())
        place, start = TreePosition(task_id, task_id), admission.start
        row = row_of(place, tenant, request.request_id, digest, domain_spec, spec.policy, start)
        made = await insert_tasks(connection, [NewTask(row, domain_spec, start.after_seconds)])
        if not made:  # a concurrent repeat, or an exclusive source that has a live task
            existing = await find_repeat(connection, tenant, request.request_id, digest, domain_spec.source)
            return CreateResult(await read_task(connection, tenant, existing), Announcement())
        await count_submit(connection, tenant, admission)
        if prepared_task_id:
            await take_prepared(connection, tenant, request.request_id, digest, prepared_task_id)
        await _write_ledger(connection, tenant, task_id, request, cut, spec, start)
        await warn_of_submit(connection, tenant, task_id, admission.uses.values())
        task = await read_task(connection, tenant, task_id)
        news = Announcement({task_id}, claimable=True, changed_tenants={tenant})
        news.source_lines = domain_spec.source.at_most > 0
        return CreateResult(task, news)

    return await in_creation(lambda: in_transaction(pool, work))


async def prepare_fork(
    pool: Pool, tenant: str, request: tasks_pb.ForkTaskRequest, defaults: TaskDefaults
) -> pb.PrepareForkResponse:
    """Returns the id that the fork will have, or the fork if it exists. Raises as fork_task does."""
    digest = digest_of(request)

    async def work(connection: Connection) -> pb.PrepareForkResponse:
        earlier = await find_earlier(connection, tenant, request.request_id, digest, new_source(request))
        if earlier is not None:
            return checkpoint_service_pb2.PrepareForkResponse(task=await read_task(connection, tenant, earlier))
        await _planned(connection, tenant, request, defaults)
        await admit(connection, tenant, request.request_id, new_source(request))
        task_id, made = await prepared(connection, tenant, request.request_id, digest, new_source(request))
        if made:
            return checkpoint_service_pb2.PrepareForkResponse(task=await read_task(connection, tenant, task_id))
        return checkpoint_service_pb2.PrepareForkResponse(prepared_task_id=task_id)

    answer = await in_transaction(pool, work)
    await failpoint("checkpoint.after_prepare")
    return answer


async def _planned(
    connection: Connection, tenant: str, request: tasks_pb.ForkTaskRequest, defaults: TaskDefaults
) -> tuple[_Cut, task_pb2.TaskSpec]:
    """Returns the history that the fork takes over, and the fork's spec."""
    cut = await _cut(connection, tenant, request)
    pinned_spec = await pinned_fork(connection, tenant, overridden(cut.spec, request.overrides), request.overrides)
    spec = defaults.of_fork(pinned_spec)
    check_no_replay(spec.agent.loop, "fork the recorded task")
    if spec.HasField("undo"):  # its calls would have other rights than those of the undo
        message = "an undo cannot be forked: undo the effects that it left with UndoTask"
        raise WrongState(message, reason="UNDO_NOT_FORKED", metadata={"undo_of": spec.undo.task_id})
    if spec.HasField("control"):
        _check_overrides_of_code(request, spec, (await reader_of(connection, request.task_id)).kind)
    _check_has_something_to_do(cut, spec, request)
    if (request.message or cut.note) and spec.HasField("control"):
        reader = await reader_of(connection, request.task_id)
        if refusal := no_reader(reader.loop, reader.kind):
            raise refusal if request.message else _undone_without_reader()
    return cut, spec


def _undone_without_reader() -> WrongState:
    message = "the function would count on effects that were undone: fork at an earlier step, or submit its goal again"
    return WrongState(message, reason=EFFECTS_UNDONE)


def overridden(spec: task_pb2.TaskSpec, overrides: task_pb2.ForkOverrides) -> task_pb2.TaskSpec:
    """Returns the other task's spec with the overrides of the fork."""
    forked = task_pb2.TaskSpec()
    forked.CopyFrom(spec)
    forked.ClearField("start_time")
    override_agent(forked, overrides)
    forked.limits.max_tokens = overrides.limits.max_tokens or spec.limits.max_tokens
    if overrides.limits.max_nano_usd:
        forked.limits.max_nano_usd = overrides.limits.max_nano_usd
        forked.limits.money_cap = task_pb2.MONEY_CAP_SUBMITTED
        forked.limits.no_money_cap = False
    elif overrides.limits.no_money_cap:
        forked.limits.no_money_cap = True
    forked.limits.max_steps = overrides.limits.max_steps or spec.limits.max_steps
    forked.source.ClearField("source_run_id")  # the run is the other task
    forked.source.ClearField("debounce")
    if overrides.HasField("source"):
        forked.source.CopyFrom(overrides.source)
    if overrides.limits.HasField("timeout"):
        forked.limits.timeout.CopyFrom(overrides.limits.timeout)
    return forked


def new_source(request: tasks_pb.ForkTaskRequest) -> Source:
    """Returns the source that the request gives to the fork. Without one, the fork is not a run of a source."""
    return source_to_domain(request.overrides.source)


async def _cut(connection: Connection, tenant: str, request: tasks_pb.ForkTaskRequest) -> _Cut:
    ledger = await _pieces(connection, tenant, request.task_id)
    point = choose_point(
        ledger,
        at_sequence=request.at_sequence if request.HasField("at_sequence") else None,
        step=request.step if request.HasField("step") else None,
    )
    if isinstance(point, TenureError):
        raise point
    overrides = request.overrides
    pieces = pieces_to_copy(ledger, point, with_tools=not (overrides.HasField("tools") or overrides.all_tools))
    if len(pieces) > MAX_ENTRIES or sum(piece.size_bytes for piece in pieces) > MAX_BYTES:
        raise _too_large()
    answer = _newest(pieces, "assistant_message")
    attempt = _newest(pieces, "model_attempt")
    bodies = await _bodies(connection, request.task_id, {1, answer, attempt} - {0})
    if 1 not in bodies:
        raise await task_not_found(connection, tenant, request.task_id)
    stop_reason = bodies[answer].assistant_message.stop_reason if ends_with_answer(pieces) else ""
    model_step = next((piece.step for piece in pieces if piece.sequence == attempt), 0)
    model_attempt = bodies[attempt].model_attempt.attempt_number if attempt else 0
    spec, files = bodies[1].submitted.spec, bodies[1].submitted.files
    if overrides.agent_revision and not spec.HasField("control"):  # its tools are those of the other revision
        pieces = [piece for piece in pieces if piece.kind != "tools_defined"]
    note = await _note(connection, tenant, request.task_id, pieces)
    return _Cut(spec, files, point, pieces, model_step, model_attempt, stop_reason, note)


async def _note(connection: Connection, tenant: str, task_id: str, pieces: list[ForkPiece]) -> str:
    """Returns the message about the copied calls that were undone, or ""."""
    intents = [piece for piece in pieces if piece.kind == "tool_intent"]
    undone = await undone_of_history(connection, tenant, task_id, max((piece.step for piece in intents), default=0))
    if not undone:
        return ""
    named = {call.call_id for call in undone[:MAX_NAMED]}
    steps = {int(name.partition(".")[0]) for name in named}
    bodies = await _bodies(connection, task_id, {piece.sequence for piece in intents if piece.step in steps})
    made = [body.tool_intent for body in bodies.values() if body.tool_intent.call_id in named]
    calls = [(intent.call_id, intent.tool, intent.arguments_json) for intent in made]
    return note_of_undone(calls, len(undone) - len(calls))


async def _pieces(connection: Connection, tenant: str, task_id: str) -> list[ForkPiece]:
    """Returns the whole ledger without its bodies."""
    parameters = {"task_id": task_id, "tenant": tenant, "limit": LONGEST + 1}
    rows = await fetch_all(connection, FORKS.pieces_of, parameters)
    if not rows:
        raise await task_not_found(connection, tenant, task_id)
    if len(rows) > LONGEST:
        raise _too_large()
    return [ForkPiece(sequence, step, _NAMES.get(kind, ""), size) for sequence, step, kind, size in rows]


def _too_large() -> WrongState:
    message = f"a fork copies at most {MAX_ENTRIES:,} entries and {MAX_BYTES // 2**20} MiB"
    return WrongState(f"{message}: fork at an earlier point", reason="FORK_TOO_LARGE")


def _newest(pieces: list[ForkPiece], kind: str) -> int:
    return next((piece.sequence for piece in reversed(pieces) if piece.kind == kind), 0)


async def _bodies(connection: Connection, task_id: str, sequences: set[int]) -> dict[int, ledger_pb2.EntryBody]:
    rows = await fetch_all(connection, FORKS.bodies_of, {"task_id": task_id, "sequences": sorted(sequences)})
    return {sequence: ledger_pb2.EntryBody.FromString(body) for sequence, body in rows}


def _check_overrides_of_code(
    request: tasks_pb.ForkTaskRequest, spec: task_pb2.TaskSpec, kind: AgentKind | None
) -> None:
    """Refuses what the code of a function, or of an agent in Python, chooses. A submit is checked too, but only the
    other task's spec shows it here.
    """
    if spec.result_schema_json:
        message = "is only for agents: a control function defines its own result"
        raise InvalidRequest(violations=[("overrides.result_schema_json", message)])
    given = {field.name for field, _ in request.overrides.ListFields()}
    chosen = _OF_THE_MODEL if kind is not AgentKind.PYTHON else (*_OF_THE_MODEL, "tools", "all_tools")
    if refused := [name for name in chosen if name in given]:
        rule = chosen_by_code(spec.control.function)
        raise InvalidRequest(violations=[(f"overrides.{name}", rule) for name in refused])


def _check_has_something_to_do(cut: _Cut, spec: task_pb2.TaskSpec, request: tasks_pb.ForkTaskRequest) -> None:
    """Raises WrongState when the history ends with a final answer, unless a message or a result schema asks for
    more.
    """
    if cut.stop_reason and is_final_answer(cut.stop_reason) and not request.message and not spec.result_schema_json:
        message = f"the history ends at {cut.point} with the agent's final answer"
        raise WrongState(f"{message}: send a message with the fork, or fork at an earlier step", reason="NOTHING_TO_DO")


async def _write_ledger(
    connection: Connection,
    tenant: str,
    task_id: str,
    request: tasks_pb.ForkTaskRequest,
    cut: _Cut,
    spec: task_pb2.TaskSpec,
    start: StartDecision,
) -> None:
    """Writes the fork's row and entries. The row comes first: the trigger of the change feed reads it at the first
    entries.
    """
    begin = _begin(request, start, cut.note)
    copied = len(cut.pieces)
    parameters: dict[str, Any] = {"task_id": task_id, "from_task_id": request.task_id, "step": cut.step}
    row = {
        "sequence": _HEAD + copied + len(begin),
        "max_steps": min(spec_to_domain(spec).limits.max_steps + cut.step, _MAX_STEPS),
        "model_step": cut.model_step,
        "model_attempt": cut.model_attempt,
        "from_sequence": cut.point,
    }
    await connection.execute(FORKS.mark_fork, {**parameters, **row})
    forked_from = task_pb2.ForkedFrom(task_id=request.task_id, sequence=cut.point)
    forked = ledger_pb2.EntryBody(forked=ledger_pb2.Forked(forked_from=forked_from, copied_entries=copied))
    domain_spec = spec_to_domain(spec)
    submitted = ledger_pb2.EntryBody(submitted=submitted_of(domain_spec, request.request_id, cut.files))
    await insert_ledgers(connection, [NewLedger(task_id, tenant, (submitted, forked), domain_spec.limits)])
    sequences = [piece.sequence for piece in cut.pieces]
    done = await fetch_all(connection, FORKS.copy_entries, {**parameters, "after": _HEAD, "sequences": sequences})
    if done != [(copied,)]:  # the other task was pruned since it was read
        raise await task_not_found(connection, tenant, request.task_id)
    tail = {
        "tenant": tenant,
        "after": _HEAD + copied,
        "kinds": [KINDS[body.WhichOneof("body") or ""] for _, body in begin],
        "actors": [actor for actor, _ in begin],
        "bodies": [body.SerializeToString() for _, body in begin],
    }
    await connection.execute(FORKS.begin_fork, {**parameters, **tail})


def _begin(
    request: tasks_pb.ForkTaskRequest, start: StartDecision, note: str
) -> list[tuple[str, ledger_pb2.EntryBody]]:
    """Returns the entries after the copy, with their actors."""
    reason = Reason.TENANT_QUOTA if start.after_seconds else Reason.FORKED
    queued = ledger_pb2.StateTransition(to_state=STATES.to_wire(TaskState.QUEUED), reason=reason, message=start.message)
    begin = [(LEDGER, ledger_pb2.EntryBody(transition=queued))]
    if note:  # without a request id, because no person sent it
        begin.append((LEDGER, ledger_pb2.EntryBody(user_message=ledger_pb2.UserMessage(text=note))))
    if request.message:
        message = ledger_pb2.UserMessage(
            text=request.message, request_id=request.request_id, files=request.message_files
        )
        begin.append((request.actor, ledger_pb2.EntryBody(user_message=message)))
    return begin


def digest_of(request: tasks_pb.ForkTaskRequest) -> bytes:
    """Returns a digest of what the fork will be.

    A repeat may come through another identity of the same caller. Files of the workspace are not the ledger's.
    """
    canonical = type(request)()
    canonical.CopyFrom(request)
    for name in ("actor", "prepared_task_id", "without_files"):
        canonical.ClearField(name)
    del canonical.message_files[:]
    canonical.message_files.extend(as_sent(request.message_files))
    return hashlib.sha256(b"fork\0" + canonical.SerializeToString(deterministic=True)).digest()
