"""Forks: where a history can be cut so that a new task goes on from it, and what of it the new task takes over.

Cut is where every call has its outcome and no model call is under way. Taken over is the conversation: answers, calls,
outcomes, tools, words. Moves between states, requests to end and model calls without an answer are the old task's own.
A new kind of fact that the conversation is made of belongs into COPIED.
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
"""Kinds of facts by their names on the wire."""

MOST_ENTRIES: Final = 20_000
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one fork: it is copied in one transaction."""

_MODEL_CALL: Final = frozenset({"model_attempt", "model_failure", "attempt_lost", "assistant_message"})
_GOES_ON: Final = frozenset({"max_tokens", "pause_turn", "refusal", "model_context_window_exceeded"})
"""Why an answer stopped that is not the last word: it is continued, or asked for again."""


class ForkPiece(NamedTuple):
    """An entry of the other task, without its body."""

    sequence: int
    step: int
    kind: str
    size_bytes: int = 0


def fork_points(ledger: Sequence[ForkPiece]) -> list[int]:
    """The sequences after which the history can be cut, ascending. The first entry always is one."""
    points: list[int] = []
    open_calls, is_asking = 0, False
    for index, (piece, announces) in enumerate(zip(ledger, _announce_calls(ledger), strict=True)):
        open_calls += {"tool_intent": 1, "tool_outcome": -1}.get(piece.kind, 0)
        if piece.kind in _MODEL_CALL:
            is_asking = piece.kind == "model_attempt"
        if not open_calls and not is_asking and not announces and not _is_summary(ledger, index):
            points.append(piece.sequence)
    return points


def choose_point(
    ledger: Sequence[ForkPiece], *, at_sequence: int | None = None, step: int | None = None
) -> int | TenureError:
    """Where to cut; gives the refusal back. Without a wish: as late as possible."""
    points = fork_points(ledger)
    if at_sequence is not None:
        return at_sequence if at_sequence in points else _no_fork_point(points, at_sequence)
    if step is None:
        return points[-1]
    newest = max(piece.step for piece in ledger)
    if step > newest:
        return InvalidRequest(violations=[("step", f"the task has made {newest} steps")])
    begun = next((piece.sequence for piece in ledger if piece.step > step), ledger[-1].sequence + 1)
    return points[bisect_left(points, begun) - 1]


def pieces_to_copy(ledger: Iterable[ForkPiece], point: int, *, with_tools: bool) -> list[ForkPiece]:
    """What a fork takes over, in order. Of model calls only those that gave an answer."""
    kept: list[ForkPiece] = []
    wanted: ForkPiece | None = None
    for piece in ledger:
        if piece.sequence > point:
            break
        if piece.kind in _MODEL_CALL:
            if piece.kind == "assistant_message" and wanted is not None:
                kept += [wanted, piece]
            wanted = piece if piece.kind == "model_attempt" else None
        elif piece.kind in COPIED and (with_tools or piece.kind != "tools_defined"):
            kept.append(piece)
    return sorted(kept)


def ends_with_answer(kept: Sequence[ForkPiece]) -> bool:
    """Whether the agent has spoken last."""
    spoken = next((piece for piece in reversed(kept) if piece.kind not in {"tools_defined", "model_attempt"}), None)
    return spoken is not None and spoken.kind == "assistant_message"


def is_final_answer(stop_reason: str) -> bool:
    """Whether an answer that stopped so ends the task, as far as nobody says more."""
    return stop_reason not in _GOES_ON


def _is_summary(ledger: Sequence[ForkPiece], index: int) -> bool:
    """Whether the entry is an answer that means something only with the compaction after it."""
    after = ledger[index + 1] if index + 1 < len(ledger) else None
    return after is not None and (ledger[index].kind, after.kind) == ("assistant_message", "compaction")


def _announce_calls(ledger: Sequence[ForkPiece]) -> list[bool]:
    """Of each entry whether intents of the answer before are still to come: they may be in another commit."""
    announced: list[bool] = []
    step_to_come: int | None = None
    for piece in reversed(ledger):
        announced.append(step_to_come is not None and piece.step >= step_to_come)
        if piece.kind == "tool_intent":
            step_to_come = piece.step
        elif piece.kind in _MODEL_CALL:
            step_to_come = None
    return announced[::-1]


def _no_fork_point(points: Sequence[int], at_sequence: int) -> WrongState:
    place = bisect_right(points, at_sequence)
    near = {"before": str(points[place - 1])}  # the first entry is a point, and nothing is asked for before it
    if place < len(points):
        near["after"] = str(points[place])
    message = " or ".join(f"{name} it {sequence}" for name, sequence in near.items())
    return WrongState(
        f"the history cannot be cut at {at_sequence}: a call has no outcome there, or the model is being asked; "
        f"{message}",
        reason="NO_FORK_POINT",
        metadata=near,
    )
