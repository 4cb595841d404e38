"""Decides where a fork can cut another task's history, and which entries the fork copies.

A fork point is a sequence at which every tool call has its outcome and no model call is in flight. A fork copies the
conversation: answers, tool calls, outcomes, tool definitions and messages. It does not copy transitions, requests to
end the task and model calls without an answer. A new entry kind that is part of the conversation must be added to
COPIED.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tenure.domain.errors import InvalidRequest, TenureError, WrongState

COPIED: Final = frozenset(
    {
        "tools_defined",
        "model_attempt",
        "assistant_message",
        "tool_intent",
        "tool_outcome",
        "user_message",
        "wait_resolution",
        "control_step",
        "result_rejected",
        "compaction",
    }
)
"""The entry kinds that a fork copies, by their field names in EntryBody."""

MAX_ENTRIES: Final = 20_000
MAX_BYTES: Final = 64 * 1024 * 1024
"""MAX_ENTRIES and MAX_BYTES limit what one fork copies, because one transaction copies it."""

_MODEL_CALL: Final = frozenset({"model_attempt", "model_failure", "attempt_lost", "assistant_message"})
_CONTINUED_STOP_REASONS: Final = frozenset({"max_tokens", "pause_turn", "refusal", "model_context_window_exceeded"})
"""Stop reasons of answers that are not final: the loop continues the answer, or repeats the model call."""


class ForkPiece(NamedTuple):
    """An entry of the forked task, without its body. `kind`: the field name in EntryBody."""

    sequence: int
    step: int
    kind: str
    size_bytes: int = 0


def fork_points(ledger: Sequence[ForkPiece]) -> list[int]:
    """Returns the sequences after which the history can be cut, ascending. The first entry is always a fork point."""
    points: list[int] = []
    open_calls, has_model_call = 0, False
    for index, (piece, announces) in enumerate(zip(ledger, _announce_calls(ledger), strict=True)):
        open_calls += {"tool_intent": 1, "tool_outcome": -1}.get(piece.kind, 0)
        if piece.kind in _MODEL_CALL:
            has_model_call = piece.kind == "model_attempt"
        if not open_calls and not has_model_call and not announces and not _is_continued(ledger, index):
            points.append(piece.sequence)
    return points


def choose_point(
    ledger: Sequence[ForkPiece], *, at_sequence: int | None = None, step: int | None = None
) -> int | TenureError:
    """Returns the sequence after which to cut, or the refusal.

    `step`: cut at the last fork point through this step. Without `at_sequence` and `step`: at the last fork point.
    """
    points = fork_points(ledger)
    if at_sequence is not None:
        return at_sequence if at_sequence in points else _no_fork_point(points, at_sequence)
    if step is None:
        return points[-1]
    newest_step = max(piece.step for piece in ledger)
    if step > newest_step:
        return InvalidRequest(violations=[("step", f"must be at most {newest_step}, the task's newest step")])
    next_step_begins = next((piece.sequence for piece in ledger if piece.step > step), ledger[-1].sequence + 1)
    return points[bisect_left(points, next_step_begins) - 1]


def pieces_to_copy(ledger: Iterable[ForkPiece], point: int, *, with_tools: bool) -> list[ForkPiece]:
    """Returns the entries that a fork copies, in order. A model attempt is copied only with its answer."""
    kept: list[ForkPiece] = []
    attempt: ForkPiece | None = None
    for piece in ledger:
        if piece.sequence > point:
            break
        if piece.kind in _MODEL_CALL:
            if piece.kind == "assistant_message" and attempt is not None:
                kept += [attempt, piece]
            attempt = piece if piece.kind == "model_attempt" else None
        elif piece.kind in COPIED and (with_tools or piece.kind != "tools_defined"):
            kept.append(piece)
    return sorted(kept)


def ends_with_answer(kept: Sequence[ForkPiece]) -> bool:
    """Whether the copied conversation ends with the agent's answer, without a tool call or a message after it."""
    newest = next((piece for piece in reversed(kept) if piece.kind not in {"tools_defined", "model_attempt"}), None)
    return newest is not None and newest.kind == "assistant_message"


def is_final_answer(stop_reason: str) -> bool:
    """Whether an answer with this stop reason ends the task, unless the user sends another message."""
    return stop_reason not in _CONTINUED_STOP_REASONS


def _is_continued(ledger: Sequence[ForkPiece], index: int) -> bool:
    """Whether the entry is an answer that has a meaning only with the entry after it: the compaction of a summary, or
    the step of a control function.
    """
    piece, after = ledger[index], ledger[index + 1] if index + 1 < len(ledger) else None
    if piece.kind != "assistant_message" or after is None:
        return False
    return after.kind == "compaction" or (after.kind == "control_step" and after.step == piece.step)


def _announce_calls(ledger: Sequence[ForkPiece]) -> list[bool]:
    """Returns for each entry whether intents of the answer before it follow later: they may be in another commit."""
    announced: list[bool] = []
    intent_step: int | None = None
    for piece in reversed(ledger):
        announced.append(intent_step is not None and piece.step >= intent_step)
        if piece.kind == "tool_intent":
            intent_step = piece.step
        elif piece.kind in _MODEL_CALL:
            intent_step = None
    return announced[::-1]


def _no_fork_point(points: Sequence[int], at_sequence: int) -> WrongState:
    index = bisect_right(points, at_sequence)
    nearest = {"before": str(points[index - 1])}  # the first entry is a fork point, and no request is before it
    if index < len(points):
        nearest["after"] = str(points[index])
    return WrongState(
        f"the task cannot be forked at sequence {at_sequence}: a tool call has no outcome there, or a model call is in "
        f"flight; fork at {' or '.join(nearest.values())}",
        reason="NO_FORK_POINT",
        metadata=nearest,
    )
