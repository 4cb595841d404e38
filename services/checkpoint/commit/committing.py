"""A batch of commits in one transaction: lock the task rows, decide each commit by the rules, write all in one
statement.

The fence is compared under the lock that the writing transaction holds. A refusal is a result: it writes nothing and
affects no other commit of the batch.
"""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from services.checkpoint.commit.close_out import carry_out_ending
from services.checkpoint.commit.draft import Draft
from services.checkpoint.commit.external_entries import ExternalRange, read_external_entries
from services.checkpoint.commit.outputs import open_output, write_outputs
from services.checkpoint.commit.task_row import lock_tasks
from services.checkpoint.commit.writing import write
from services.checkpoint.rows import TaskRow
from services.checkpoint.submit.spawning import spawn
from services.checkpoint.tenants.quotas import NO_QUOTAS, CallQuotas, LimitedTenants
from services.checkpoint.waits.budget_waits import end_budget_wait, with_figures
from services.checkpoint.waits.signals import take_kept
from services.checkpoint.waits.sub_agent_waits import awaited, end_wait, wait_for
from services.checkpoint.watch.announcement import Announcement, announcement_of
from services.checkpoint.watch.appended_entries import entries_of
from tenure.domain.admission import CommitVerdict, decide_commit
from tenure.domain.budget import Denied, decide_reserve
from tenure.domain.close_out import (
    LEDGER_WARNING_SHARE,
    ending_of_full_ledger,
    open_calls_after,
    refuse_early_end,
    refuse_success_with_unread,
)
from tenure.domain.errors import TOO_MUCH_APPENDED, InvalidRequest, NotFound, SequenceConflict, TenureError
from tenure.domain.requeue import refuse_limit_that_was_raised, refuse_limit_with_unread_grant
from tenure.domain.result_schema import refuse_success
from tenure.domain.states import MOVES, TERMINAL, Reason, TaskState
from tenure.domain.stops import RETRY_SECONDS
from tenure.domain.waits import WaitKind
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.common import STATES, duration
from tenure.wire.task import budget_request_to_domain, budget_request_to_wire, prices_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.checkpoint.commit.prepared import PreparedCommit, PreparedTransition
    from services.checkpoint.prices import PriceList
    from services.checkpoint.rows import NewEntryRow
    from tenure.domain.budget import Budget, BudgetRequest, Granted, ReserveRequest
    from tenure.domain.waits import Wait
    from tenure.runtime.store.postgres import Connection
    from tenure.v1 import ledger_pb2

_log: Final = logging.getLogger(__name__)
Result = pb.CommitResponse | TenureError
MAX_OPEN_CALLS: Final = 1024


async def commit_batch(
    connection: Connection,
    commits: Sequence[PreparedCommit],
    prices: PriceList,
    limited: LimitedTenants | None = None,
    max_ledger_bytes: int = 0,
) -> tuple[list[Result], Announcement]:
    """Returns the results in order, and what to announce once the surrounding transaction is durable.

    A batch must not have two commits of one task. Raises what Postgres raises, for the batch as a whole.
    """
    tasks, budgets = await lock_tasks(connection, [commit.task_id for commit in commits])
    verdicts = [_decide(tasks.get(commit.task_id), commit) for commit in commits]
    external = await read_external_entries(connection, _external_ranges(commits, verdicts, tasks))
    asking = {commit.tenant for commit in commits if commit.reserve is not None}
    quotas = await limited.read(connection, asking) if limited is not None and asking else NO_QUOTAS
    results: list[Result] = []
    drafts: list[Draft] = []
    for index, (commit, verdict) in enumerate(zip(commits, verdicts, strict=True)):
        if isinstance(verdict, TenureError):
            results.append(verdict)
        elif index in external.cut:
            message = (
                f"too many external entries after sequence {commit.known_sequence}: read them with ListTaskEntries and "
                "commit again"
            )
            results.append(SequenceConflict(message, reason=TOO_MUCH_APPENDED))
        elif verdict is CommitVerdict.REPEAT:
            stored = pb.CommitResponse.FromString(tasks[commit.task_id].last_reply)
            results.append(_with_external(stored, external.of(index)))  # entries never move
        elif refusal := _unread(
            row := tasks[commit.task_id], budgets[row.root_task_id].budget, commit, external.of(index)
        ):
            results.append(refusal)
        else:
            drafts.append(Draft(row, budgets[row.root_task_id]))
            _limit_size(drafts[-1], commit, max_ledger_bytes)
            results.append(await _apply(connection, drafts[-1], commit, prices, quotas, external.of(index)))
    await write(connection, drafts)
    return results, announcement_of(drafts)


def _decide(row: TaskRow | None, commit: PreparedCommit) -> CommitVerdict | TenureError:
    """Decides a commit: first the fence, then whether its entries fit the task row. Changes nothing."""
    if row is None or row.tenant != commit.tenant:
        return NotFound(f"task {commit.task_id} not found")
    verdict = decide_commit(row.fence, commit.fence, commit.commit_number, commit.commit_id, commit.payload_hash)
    if verdict is not CommitVerdict.APPLY:
        return verdict
    if commit.known_sequence > row.sequence:
        message = f"known_sequence is after the ledger's last sequence {row.sequence}: open the task and fold it again"
        return SequenceConflict(message)
    return _misfit(row, commit) or verdict


def _misfit(row: TaskRow, commit: PreparedCommit) -> TenureError | None:
    """Returns why the commit's entries cannot follow the task row, or None."""
    calls = open_calls_after(row.open_calls, commit.calls)
    if isinstance(calls, TenureError):
        return calls
    if len(calls) > MAX_OPEN_CALLS:
        return InvalidRequest(violations=[("entries", f"more than {MAX_OPEN_CALLS} open calls")])
    settled = commit.settlement
    if settled is not None and (
        not row.model_open or (settled.step, settled.attempt_number) != (row.model_step, row.model_attempt)
    ):
        message = f"step {settled.step} attempt {settled.attempt_number} is not the open model attempt"
        return InvalidRequest(violations=[("entries", message)])
    return _misfit_of_reserve(row, commit) if commit.move is None else _misfit_of_move(row, commit.move, calls)


def _misfit_of_move(row: TaskRow, move: PreparedTransition, calls: tuple[str, ...]) -> TenureError | None:
    if move.to_state not in MOVES[row.state]:
        return InvalidRequest(violations=[("transition.to_state", "RUNNING cannot change to this state")])
    if move.wait is not None and move.wait.kind is WaitKind.BUDGET and calls:
        return InvalidRequest(violations=[("transition.wait", "a task with open calls cannot wait for budget")])
    waiting = () if move.wait is None else move.wait.all_calls
    if any(call.call_id not in calls for call in waiting):
        return InvalidRequest(violations=[("transition.wait.call_id", "no open call has this id")])
    if any(call.call_id not in calls for call in move.in_doubt):
        return InvalidRequest(violations=[("transition.calls_in_doubt", "names a call that is not open")])
    refused = refuse_success(
        move.to_state,
        has_schema=row.has_result_schema,
        is_to_end=row.ending is not None,
        result_json=move.result_json,
    )
    return refused or refuse_early_end(move.to_state, calls)


def _misfit_of_reserve(row: TaskRow, commit: PreparedCommit) -> TenureError | None:
    """Returns why a reservation cannot follow: one model attempt at a time, and each number has one bill."""
    if commit.reserve is None:
        return None
    if row.model_open and commit.settlement is None:
        return InvalidRequest(violations=[("reserve", "a model attempt is open: settle it first")])
    if (commit.reserve.step, commit.reserve.attempt_number) <= (row.model_step, row.model_attempt):
        return InvalidRequest(violations=[("reserve", "this attempt number was used before: use the next one")])
    return None


def _unread(row: TaskRow, root: Budget, commit: PreparedCommit, external: list[ledger_pb2.Entry]) -> TenureError | None:
    """Returns why the task cannot end like this: its owner has not read a newer user message or raise of the budget."""
    if commit.move is None:
        return None
    move, others = commit.move, [entry for entry in external if not entry.epoch]
    message = (entry.sequence for entry in others if entry.body.HasField("user_message"))
    grants = (entry.sequence for entry in others if entry.body.operator_request.HasField("grant_budget"))
    refusal = refuse_success_with_unread(move.to_state, row.ending, max(message, default=0))
    refusal = refusal or refuse_limit_with_unread_grant(move.to_state, move.reason, row.ending, max(grants, default=0))
    if refusal is not None or move.to_state is not TaskState.COST_EXCEEDED:
        return refusal
    budgets = (root, row.own_budget)
    return refuse_limit_that_was_raised(move.to_state, move.reason, row.ending, _denied_request(row), budgets)


def _denied_request(row: TaskRow) -> BudgetRequest | None:
    """Returns what the newest commit of the claim was denied; None: it was denied nothing, or for another reason."""
    denied = pb.CommitResponse.FromString(row.last_reply).reserve.denied
    return budget_request_to_domain(denied.budget_request) if denied.HasField("budget_request") else None


async def _apply(
    connection: Connection,
    draft: Draft,
    commit: PreparedCommit,
    prices: PriceList,
    quotas: CallQuotas,
    external: list[ledger_pb2.Entry],
) -> pb.CommitResponse:
    """Applies a commit that can no longer be refused: entries, then the reservation or the transition, then a due
    ending.

    A quota warning comes before all of them: the owner must receive it like an external entry.
    """
    if commit.reserve is not None:
        external = external + await quotas.warn(connection, draft)
    base = draft.row.sequence
    added = await _apply_entries(connection, draft, commit)
    reserved = None if commit.reserve is None else _reserve(draft, commit.reserve, prices, quotas, commit.holder)
    if commit.move is not None:
        sub_agents = await awaited(connection, draft, commit.move.wait)
        _move(draft, commit, with_figures(draft, wait_for(draft, commit.move.wait, sub_agents)))
        await take_kept(connection, draft)
        end_wait(draft, sub_agents)
        end_budget_wait(draft, "the budget was raised meanwhile")
        await carry_out_ending(connection, draft)
        if draft.row.state is TaskState.SUCCEEDED:  # not when a pending ending won
            await write_outputs(connection, draft, commit.move.outputs)
    return _with_external(_answer(draft, commit, base, reserved, added), external)


def _limit_size(draft: Draft, commit: PreparedCommit, limit_bytes: int) -> None:
    """Requests the end of a task whose ledger is too large after this commit; warns once before.

    The commit itself is written: its owner, or else a coordinator, then carries the ending out.
    """
    row, after = draft.row, draft.row.ledger_bytes + commit.size_bytes
    ending = ending_of_full_ledger(after, limit_bytes)
    if ending is not None and row.ending is None and commit.move is None:
        draft.request_ending(ending)
    elif limit_bytes and row.ledger_bytes <= limit_bytes * LEDGER_WARNING_SHARE < after:
        fields = {"task": row.task_id, "tenant": row.tenant, "bytes": after, "limit": limit_bytes}
        _log.warning("a task's history comes near the limit of its size", extra=fields)


async def _apply_entries(connection: Connection, draft: Draft, commit: PreparedCommit) -> list[NewEntryRow]:
    """Appends the commit's entries, its settlement, its sub-agents and its outputs. Returns the entries that the ledger
    added for calls.
    """
    for entry in commit.entries:
        draft.append(entry.kind, entry.body, step=entry.step, actor=commit.holder, by_claim=True)
    draft.row.open_calls = _calls_of(draft.row, commit)
    draft.reach(commit.step)
    if commit.settlement is not None:
        settled = commit.settlement
        draft.settle(settled.usage, model=settled.model, provider_request_id=settled.provider_request_id)
        draft.warn()
    begun = len(draft.entries)
    for call in commit.output_calls:
        await open_output(connection, draft, call)
    for call in commit.spawns:
        await spawn(connection, draft, call)
    if commit.outputs:
        await write_outputs(connection, draft, commit.outputs)
    return draft.entries[begun:]


def _answer(
    draft: Draft, commit: PreparedCommit, base: int, reserved: pb.ReserveResult | None, added: list[NewEntryRow]
) -> pb.CommitResponse:
    """Builds the response and stores it in the task row for a repeat."""
    row = draft.row
    draft.committed = True  # also without an entry: a repeat must get the same denied reservation again
    response = pb.CommitResponse(
        sequence=row.sequence,
        budget=draft.budget.shown,
        cancel_requested=bool(row.ending_state) and row.state not in TERMINAL,
        reserve=reserved,
        state=STATES.to_wire(row.state),
    )
    if entries_of_others := sorted([*draft.warnings, *added], key=attrgetter("sequence")):
        response.foreign_entries.extend(entries_of(entries_of_others, row.locked_at))
    row.commit_number, row.last_commit_id = commit.commit_number, commit.commit_id
    row.last_commit_hash, row.last_base = commit.payload_hash, base
    row.last_reply = response.SerializeToString(deterministic=True)
    return response


def _with_external(response: pb.CommitResponse, external: list[ledger_pb2.Entry]) -> pb.CommitResponse:
    """Adds external entries in ledger order: first those before the commit, then those that it caused."""
    if external:
        added = list(response.foreign_entries)
        del response.foreign_entries[:]
        response.foreign_entries.extend([*external, *added])
    return response


def _calls_of(row: TaskRow, commit: PreparedCommit) -> tuple[str, ...]:
    calls = open_calls_after(row.open_calls, commit.calls)
    assert not isinstance(calls, TenureError), "_misfit checked the calls"
    return calls


def _reserve(
    draft: Draft, request: ReserveRequest, prices: PriceList, quotas: CallQuotas, holder: str
) -> pb.ReserveResult:
    """Grants or denies the reservation; the commit applies either way. A pending ending, and a stop, deny every model
    call.
    """
    row, ending = draft.row, draft.row.ending
    decided: Granted | Denied
    if ending is not None:
        decided = Denied(ending.reason, ending.message or "the task has a pending ending")
    elif row.stopped:
        message = "a stop covers the task: tenure explain says whose and why"
        decided = Denied(Reason.STOPPED, message, RETRY_SECONDS)
    else:
        root = draft.budget.budget
        budgets = (root, row.own_budget) if row.has_own_caps else (root,)
        decided = decide_reserve(
            budgets,
            request,
            prices.of(request.model, row.locked_at),
            row.max_steps,
            is_default_cap=draft.budget.is_default_cap,
        )
    if not isinstance(decided, Denied):
        decided = quotas.denied(row.tenant) or decided
    if isinstance(decided, Denied):
        return pb.ReserveResult(
            denied=pb.ReserveResult.Denied(
                reason=decided.reason,
                message=decided.message,
                budget_request=budget_request_to_wire(decided.request),
                retry_after=None if decided.retry_after_seconds is None else duration(decided.retry_after_seconds),
            )
        )
    draft.reserve(request, decided, holder)
    return pb.ReserveResult(
        granted=pb.ReserveResult.Granted(
            max_output_tokens=decided.max_output_tokens,
            reserved_tokens=decided.reserved_tokens,
            reserved_nano_usd=decided.reserved_nano_usd,
            prices=prices_to_wire(decided.prices),
        )
    )


def _move(draft: Draft, commit: PreparedCommit, wait: Wait | None) -> None:
    """Applies the owner's transition. A pending ending wins over the owner's ending, because the service acknowledged
    it; the owner's result is kept.
    """
    move, ending = commit.move, draft.row.ending
    assert move is not None
    if ending is not None and move.to_state in TERMINAL:
        draft.move(
            ending.to_state, ending.reason, ending.message, actor=commit.holder, result=move.result, by_claim=True
        )
        return
    draft.move(
        move.to_state,
        move.reason,
        move.message,
        actor=commit.holder,
        result=move.result,
        result_json=move.result_json,
        retry_delay_seconds=move.retry_delay_seconds,
        wait=wait,
        error_class=move.error_class,
        in_doubt=move.in_doubt,
        outputs=move.outputs,
        by_claim=True,
    )


def _external_ranges(
    commits: Sequence[PreparedCommit], verdicts: Sequence[CommitVerdict | TenureError], tasks: dict[str, TaskRow]
) -> list[ExternalRange]:
    """Returns the entries that others appended between each caller's known sequence and its commit."""
    ranges = []
    for index, (commit, verdict) in enumerate(zip(commits, verdicts, strict=True)):
        if isinstance(verdict, TenureError):
            continue
        row = tasks[commit.task_id]
        until = row.last_base if verdict is CommitVerdict.REPEAT else row.sequence
        if commit.known_sequence < until:
            ranges.append(ExternalRange(index, commit.task_id, commit.known_sequence, until))
    return ranges
