"""Calls in doubt in a task's row: what a wait is over, and the words that people give, under the row's lock.

They stand there as "<call_id>:<attempt>" from the move into the wait until the word on each, or the task's next move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.domain.in_doubt import Abandon, CallInDoubt, DidNotHappen, Happened, decide_word
from tenure.domain.states import Reason, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.checkpoint.draft import Draft
    from services.checkpoint.rows import TaskRow
    from tenure.domain.entries import OperatorRequest
    from tenure.domain.in_doubt import ResolveCall

_TOLD = {Happened: "happened", DidNotHappen: "did not happen", Abandon: "is given up"}


def kept(calls: Iterable[CallInDoubt]) -> tuple[str, ...]:
    """As the row has them."""
    return tuple(f"{call.call_id}:{call.call_attempt}" for call in calls)


def calls_in_doubt(texts: Iterable[str]) -> list[CallInDoubt]:
    """As the rules know them."""
    split = (text.rpartition(":") for text in texts)
    return [CallInDoubt(call_id, int(attempt)) for call_id, _, attempt in split]


def waited_for(texts: Iterable[str], open_calls: Iterable[str]) -> list[CallInDoubt]:
    """What a task in such a wait waits for. A worker that does not say which is taken to wait for all that is open."""
    return calls_in_doubt(texts) or [CallInDoubt(call_id, 0) for call_id in open_calls]


def take_word(row: TaskRow, asked: ResolveCall) -> None:
    """The word is about to be appended. Raises WrongState; then nothing has changed."""
    left = decide_word(row.state, row.reason, row.open_calls, calls_in_doubt(row.calls_in_doubt), asked)
    if not isinstance(left, tuple):
        raise left
    row.calls_in_doubt = kept(left)


def conclude_word(draft: Draft, request: OperatorRequest, asked: ResolveCall, actor: str) -> None:
    """The task is queued once every call it waits for has its word; until then its row alone changes."""
    if draft.row.calls_in_doubt:
        draft.moved = True
        return
    told = f"{actor} says that {asked.call_id} {_TOLD[type(asked.decision)]}: {request.reason}"
    draft.move(TaskState.QUEUED, Reason.CALL_RESOLVED, told, actor=actor)
