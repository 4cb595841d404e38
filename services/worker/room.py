"""How much room a conversation has left in the model's window: what its next call takes, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.worker.claim_ledger import ClaimLedger
from services.worker.estimate import BYTES_PER_TOKEN, Counted, InputEstimate, likely_tokens
from services.worker.parts import ModelDefaults
from services.worker.prompt_cache import LEAST_TOKENS
from tenure.domain.compaction import AskSummary, MakeRoom, Window, make_room, window_of
from tenure.domain.conversation import Message
from tenure.domain.summary import SUMMARY_SYSTEM, summary_messages, summary_output_tokens
from tenure.domain.task import TaskSpec
from tenure.domain.turn import CallModel

TOKENS_AROUND_SUMMARY: Final = 256
"""What is around the conversation in the request for a summary."""


def window_for(spec: TaskSpec, defaults: ModelDefaults) -> Window:
    """The window of the task's model, under what the task and this worker allow."""
    return window_of(
        spec.agent.model or defaults.model,
        max_output_tokens=spec.agent.max_output_tokens or defaults.max_output_tokens,
        limits=(spec.agent.context_window_tokens, defaults.context_window_tokens),
    )


class Room:
    """Of one task under one claim; reads the fold as it stands."""

    def __init__(
        self, ledger: ClaimLedger, window: Window, system: str, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._ledger, self._window, self._system, self._tools = ledger, window, system, tools
        self._measure_anew()

    def is_short(self, move: CallModel, to_come: Message | None) -> bool:
        """Whether something is to be decided before the call. `to_come`: what the ledger does not have yet."""
        return self._ledger.point.must_shorten or (
            not move.summary_through_step and self._expected(to_come) > self._window.near
        )

    def make(self, move: CallModel) -> MakeRoom | None:
        """What to do before the call. All that is pending is in the ledger by now."""
        point = self._ledger.point
        content = point.pending_content
        to_come: Message | None = {"role": "user", "content": content} if content else None
        expected = self._expected(to_come)
        made = make_room(point, expected, self._window, expected - self._expected(None))
        return None if move.summary_through_step and isinstance(made, AskSummary) else made

    def upper_bound(self, move: CallModel, to_come: Message | None = None) -> int:
        """Tokens of the call's input, at most."""
        if move.summary_through_step:
            asked = self.summary_messages(move.summary_through_step)
            return InputEstimate(SUMMARY_SYSTEM, ()).upper_bound(asked)
        return self._bound(to_come, self._ledger.point.counted)

    def guessed(self, move: CallModel, to_come: Message | None = None) -> int:
        """How much of the bound nobody has counted, in tokens: what the provider did not see in the call before."""
        counted = None if move.summary_through_step else self._ledger.point.counted
        return self.upper_bound(move, to_come) - (counted[1] if counted else 0)

    def is_worth_keeping(self) -> bool:
        """Whether the provider keeps a prompt this long. By the conversation alone: a successor asks alike."""
        return self._bound(None, None) >= LEAST_TOKENS

    def output_tokens(self, move: CallModel) -> int:
        """The longest answer."""
        return summary_output_tokens(self._window.tokens) if move.summary_through_step else self._window.output_tokens

    def summary_messages(self, through_step: int) -> list[Message]:
        """The request for a summary; half as large at most as what the provider refused, if it refused something."""
        point = self._ledger.point
        fits = self._window.tokens - summary_output_tokens(self._window.tokens) - TOKENS_AROUND_SUMMARY
        if point.overflows:
            fits = min(fits, point.refused_tokens) // 2
        return summary_messages(point, through_step, fits * BYTES_PER_TOKEN)

    def _expected(self, to_come: Message | None) -> int:
        """Of the next turn: as the provider counted, or as was estimated when results were cleared.

        What came since is taken as what it likely is: by a bound, a conversation would be shortened too soon.
        """
        point = self._ledger.point
        conversation = point.conversation
        cleared = (conversation.expected_messages, conversation.expected_tokens)
        counted = point.counted or (cleared if conversation.expected_tokens else None)
        return self._tokens(counted, to_come, likely=True)

    def _bound(self, to_come: Message | None, counted: Counted | None) -> int:
        return self._tokens(counted, to_come)

    def _tokens(self, counted: Counted | None, to_come: Message | None, *, likely: bool = False) -> int:
        if self._ledger.point.conversation.changes != self._changes:
            self._measure_anew()
        estimate = self._likely if likely else self._bounds
        return estimate.upper_bound(self._ledger.point.messages, () if to_come is None else (to_come,), counted)

    def _measure_anew(self) -> None:
        """A compaction changes messages that were measured: then all are measured again."""
        self._changes = self._ledger.point.conversation.changes
        self._bounds = InputEstimate(self._system, self._tools)
        self._likely = InputEstimate(self._system, self._tools, likely_tokens)
