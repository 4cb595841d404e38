"""An act that an operator got an answer for stays done: pure, over the entries of one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tenure.domain.entries import (
    CancelRequest,
    Entry,
    GrantBudget,
    OperatorCloseOut,
    OperatorRequest,
    Requeue,
    Transition,
)
from tenure.domain.states import TERMINAL, Reason, TaskState
from tests.fault.suite.between import Action, Done


def undone(entries: Sequence[Entry], done: Iterable[Done]) -> Iterator[str]:
    """Sentences, one for each law that is broken. The task has ended."""
    yield from _unrequested_ends(entries)
    for one in done:
        if not _is_kept(entries, one):
            yield f"{one} was acknowledged, and undone or never done"


def _unrequested_ends(entries: Sequence[Entry]) -> Iterator[str]:
    """An attempt is ended by a request of its own: one for the attempt before does not end it."""
    for entry in entries:
        end = entry.body
        if not isinstance(end, Transition) or end.to_state not in TERMINAL:
            continue
        requests = [one.body for one in entries if one.attempt == entry.attempt and one.sequence < entry.sequence]
        closes = [
            one.act for one in requests if isinstance(one, OperatorRequest) and isinstance(one.act, OperatorCloseOut)
        ]
        if end.reason == Reason.OPERATOR_CLOSE_OUT and not closes:
            yield f"attempt {entry.attempt} was closed out at {entry.sequence}, and no operator had asked for that"
        elif end.to_state is TaskState.CANCELLED and not (
            closes or any(isinstance(one, CancelRequest) for one in requests)
        ):
            yield f"attempt {entry.attempt} was cancelled at {entry.sequence}, and no operator had asked for that"


def _is_kept(entries: Sequence[Entry], done: Done) -> bool:
    """Of a transfer: the former owner has written nothing since."""
    requests = [one.body.act for one in entries if isinstance(one.body, OperatorRequest)]
    match done.action:
        case Action.CANCEL | Action.CLOSE_OUT:
            ends = [one for one in entries if isinstance(one.body, Transition) and one.body.to_state in TERMINAL]
            return any(one.attempt == done.attempt for one in ends)
        case Action.REQUEUE:
            attempts = {one.attempt for one in entries}
            return done.attempt in attempts and any(isinstance(act, Requeue) for act in requests)
        case Action.GRANT:
            return any(isinstance(act, GrantBudget) for act in requests)
        case Action.TRANSFER:
            taken_at, owners = _taken(entries, done)
            return not any(one.epoch in owners and one.sequence > taken_at for one in entries)


def _taken(entries: Sequence[Entry], done: Done) -> tuple[int, set[int]]:
    """Where a transfer took the task away, and from which epochs. The look before it is not enough: it may have come
    before the grant that was taken away, and named epoch 0, as entries that need no claim.
    """
    transfers = [
        one.sequence
        for one in entries
        if isinstance(one.body, Transition) and one.body.reason == Reason.OPERATOR_TRANSFER
    ]
    taken_at = max((at for at in transfers if at <= done.sequence), default=None)
    if taken_at is None:  # it moved by itself, at the same moment
        return done.sequence, {done.epoch} - {0}
    return taken_at, {one.epoch for one in entries if one.sequence < taken_at} - {0}
