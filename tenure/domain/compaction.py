"""When the conversation comes near the model's window, and what is then done about it: a rule without clock or dice.

Old results of tools are left out first: most of a long history is theirs, and an agent can look again. When that is not
enough, a summary by the model takes the place of the beginning. Both are entries, so that every later owner, and every
fork, sends the same conversation; the ledger keeps all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tenure.domain.entries import ClearedResults
from tenure.domain.fold import ResumePoint

DEFAULT_WINDOW_TOKENS: Final = 200_000
WINDOW_TOKENS: Final = {"claude-2.0": 100_000, "claude-instant": 100_000}
"""Models, by how their names begin, whose window is another."""

KEPT_STEPS: Final = 3
"""The results of so many steps, the newest, are never cleared."""

MOST_OVERFLOWS: Final = 1
"""So often a conversation that the provider finds too long is made shorter; the next time the task fails."""

_NEAR: Final = 0.8  # of the room for input: the estimate may be wrong, and the next answer comes on top
_WORTH: Final = 0.1  # of the room: clearing less often than it could keeps the provider's prompt cache useful
_OWN_TURN: Final = 0.25  # of the room: a newest turn of up to this size is kept beside a summary
_BYTES_PER_TOKEN: Final = 4  # of what is cleared: rather too little is counted as gained


@dataclass(frozen=True, slots=True)
class Window:
    """What a model call may hold, in tokens."""

    tokens: int
    output_tokens: int

    @property
    def room(self) -> int:
        """For the input."""
        return self.tokens - self.output_tokens

    @property
    def near(self) -> int:
        """An input beyond this is too near the window."""
        return int(self.room * _NEAR)

    @property
    def result_bytes(self) -> int:
        """How much of the results of one step's calls is shown, together."""
        return int(self.room * _OWN_TURN) * _BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class AskSummary:
    """Have the model summarise the conversation through a step."""

    through_step: int


@dataclass(frozen=True, slots=True)
class OutOfRoom:
    """Nothing can be made shorter, or it did not help."""

    why: str


MakeRoom = ClearedResults | AskSummary | OutOfRoom


def window_of(model: str, *, max_output_tokens: int, limits: Iterable[int] = ()) -> Window:
    """The model's window under what the task and the worker allow of it (0: all). Half of it at most is for output."""
    known = next((tokens for begin, tokens in WINDOW_TOKENS.items() if model.startswith(begin)), DEFAULT_WINDOW_TOKENS)
    tokens = min([known, *(limit for limit in limits if limit)])
    return Window(tokens, min(max_output_tokens, tokens // 2))


def make_room(point: ResumePoint, expected_tokens: int, window: Window, pending_tokens: int = 0) -> MakeRoom | None:
    """What to do before the next turn, with an input of about `expected_tokens`, `pending_tokens` of them new.

    None: there is room; call the model.
    """
    if point.must_shorten:
        return _must(point)
    if expected_tokens <= window.near:
        return None
    return _clear(point, expected_tokens - pending_tokens, window) or _summarise(point, window)


def _must(point: ResumePoint) -> AskSummary | OutOfRoom:
    """The provider refused, so the estimate was wrong: no half measures."""
    if point.overflows > MOST_OVERFLOWS:
        return OutOfRoom("the conversation does not fit the model's window, even after it was made shorter")
    answered = point.conversation.answered_step
    if not _has_answers(point, answered - point.is_at_dead_end):
        return OutOfRoom("the goal, the system prompt and the tools do not fit the model's window")
    return AskSummary(answered)


def _clear(point: ResumePoint, sent_tokens: int, window: Window) -> ClearedResults | None:
    """All old results, if that is worth it."""
    steps = sorted({result.step for result in [*point.conversation.results, *point.pending_results]})
    if len(steps) <= KEPT_STEPS:
        return None
    through = steps[-KEPT_STEPS - 1]
    old = [result for result in point.conversation.results if result.step <= through]
    gained = sum(max(0, result.saved_bytes) for result in old) // _BYTES_PER_TOKEN
    if gained < window.room * _WORTH:
        return None
    return ClearedResults(through, len(old), sent_tokens, max(0, sent_tokens - gained))


def _summarise(point: ResumePoint, window: Window) -> AskSummary | None:
    """Once between two turns: what is left after it is what the model has to do with.

    The newest turn is kept in its own words when it is small, and always when it is to be continued.
    """
    answered = point.conversation.answered_step
    if not answered or point.has_new_summary:
        return None
    before = answered - 1
    is_small = _size_bytes(point, before) <= window.room * _OWN_TURN * _BYTES_PER_TOKEN
    if _has_answers(point, before) and (is_small or _is_paused(point)):
        return AskSummary(before)
    return None if _is_paused(point) else AskSummary(answered)


def _has_answers(point: ResumePoint, through_step: int) -> bool:
    return any(message["role"] == "assistant" for message in point.conversation.through(through_step))


def _is_paused(point: ResumePoint) -> bool:
    return point.answer is not None and point.answer.stop_reason in {"pause_turn", "max_tokens"}


def _size_bytes(point: ResumePoint, after_step: int) -> int:
    """Of the turns after a step, with what has come since."""
    conversation = point.conversation
    kept = conversation.messages[len(conversation.through(after_step)) :]
    text = json.dumps([*kept, *point.pending_content], ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))
