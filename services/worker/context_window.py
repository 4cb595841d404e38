"""Measures the conversation against the model's context window, before each call, and decides on compaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from services.worker.claim_ledger import ClaimLedger
from services.worker.dependencies import ModelDefaults
from tenure.domain.compaction import (
    SUMMARY_SYSTEM,
    NextCompaction,
    RequestSummary,
    Window,
    next_compaction,
    summary_messages,
    summary_output_tokens,
    window_of,
)
from tenure.domain.conversation import Message
from tenure.domain.images import image_tokens, images_in
from tenure.domain.next_action import CallModel
from tenure.domain.task import TaskSpec
from tenure.domain.texts import BYTES_PER_TOKEN, text_tokens
from tenure.model_providers.client import MIN_TOKENS
from tenure.model_providers.message_texts import TOOL_TEXTS, MessageTexts, as_json

# The upper bound of a request's input in tokens, computed without the provider.

TOKENS_PER_REQUEST: Final = 32
TOKENS_PER_MESSAGE: Final = 8
TOKENS_FOR_TOOLS: Final = 512
"""The provider's own text about tools, which it adds to the first definition."""

Counted = tuple[int, int]
"""The number of messages of a request, and the tokens of the whole request."""


def with_margin(counted_tokens: int) -> int:
    """Returns an upper bound for a prompt that the provider counted beforehand: it calls its count an estimate."""
    return counted_tokens + counted_tokens // 50 + 16


def likely_tokens(text: str) -> int:
    """Returns an estimate: too high for prose, code and tool definitions, too low for text that is not a language."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _definition_tokens(tool: Mapping[str, Any]) -> int:
    """Estimates a tool definition: it is mostly structure, which tokenizers encode well."""
    return likely_tokens(TOOL_TEXTS.of(tool))


class InputEstimate:
    """The upper bound for one task's conversation. Messages never change; only the newest ones may be removed.

    `measure` returns the tokens of a text; `likely_tokens` makes this an estimate. `texts`: the JSON of the messages,
    which several estimates may share. `seen_by`: the model that sees the images; "": none does.
    """

    def __init__(
        self,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        measure: Callable[[str], int] = text_tokens,
        texts: MessageTexts | None = None,
        seen_by: str = "",
    ) -> None:
        self._measure_text, self._seen_by = measure, seen_by
        self._fixed = TOKENS_PER_REQUEST + measure(system) + sum(map(_definition_tokens, tools))
        self._fixed += TOKENS_FOR_TOOLS if tools else 0
        self._texts = MessageTexts() if texts is None else texts
        self._measured: list[str] = []
        self._sums: list[int] = [0]
        self._newest = "", 0

    def upper_bound(
        self, messages: Sequence[Message], to_come: Iterable[Message] = (), counted: Counted | None = None
    ) -> int:
        """Returns the tokens of a request with `messages` and then `to_come`, which are not in the ledger yet."""
        self._measure(messages, self._texts.of(messages))
        known, tokens = counted if counted is not None and counted[0] <= len(messages) else (0, self._fixed)
        return tokens + self._sums[-1] - self._sums[known] + sum(self._tokens(one, as_json(one)) for one in to_come)

    def _measure(self, messages: Sequence[Message], texts: Sequence[str]) -> None:
        while self._measured and not self._is_part_of(texts):
            self._measured.pop()
            self._sums.pop()
        known = len(self._measured)
        for message, text in zip(messages[known:], texts[known:], strict=True):
            self._measured.append(text)
            self._sums.append(self._sums[-1] + self._tokens(message, text))

    def _tokens(self, message: Message, text: str) -> int:
        """Returns the tokens of a message. A message to come is measured several times before it is in the ledger."""
        if text != self._newest[0]:
            images = images_in([message]) if self._seen_by else ()
            seen = sum(image_tokens(self._seen_by, source["width"], source["height"]) for source in images)
            self._newest = text, self._measure_text(text) + seen + TOKENS_PER_MESSAGE
        return self._newest[1]

    def _is_part_of(self, texts: Sequence[str]) -> bool:
        count = len(self._measured)
        return count <= len(texts) and texts[count - 1] is self._measured[-1]


TOKENS_AROUND_SUMMARY: Final = 256
"""The tokens around the conversation in the request for a summary."""


def window_for(spec: TaskSpec, defaults: ModelDefaults) -> Window:
    """Returns the context window of the task's model, within the limits of the task and of this worker."""
    return window_of(
        spec.agent.model or defaults.model,
        max_output_tokens=spec.agent.max_output_tokens or defaults.max_output_tokens,
        limits=(spec.agent.context_window_tokens, defaults.context_window_tokens),
    )


class ContextWindow:
    """The context window of one task under one claim. Reads the current fold. `seen_by`: as in InputEstimate."""

    def __init__(
        self,
        ledger: ClaimLedger,
        window: Window,
        system: str,
        tools: Sequence[Mapping[str, Any]] = (),
        seen_by: str = "",
    ) -> None:
        self._ledger, self._window, self._system, self._tools = ledger, window, system, tools
        self._seen_by = seen_by
        self._measure_anew()

    @property
    def _narrow(self) -> Window:
        """The window, within that of the endpoint as far as it is known."""
        return self._window.within(self._ledger.point.window_tokens)

    def is_short(self, move: CallModel, to_come: Message | None) -> bool:
        """Whether a compaction must be decided before the call. `to_come`: a message that is not in the ledger yet."""
        return self._ledger.point.must_shorten or (
            not move.summary_through_step and self._expected(to_come) > self._narrow.near
        )

    def next_compaction_of(self, move: CallModel) -> NextCompaction | None:
        """Returns the compaction to make before the call, or None. Nothing may be pending."""
        point = self._ledger.point
        content = point.pending_content
        to_come: Message | None = {"role": "user", "content": content} if content else None
        expected = self._expected(to_come)
        compaction = next_compaction(point, expected, self._narrow, expected - self._expected(None))
        return None if move.summary_through_step and isinstance(compaction, RequestSummary) else compaction

    def upper_bound(self, move: CallModel, to_come: Message | None = None) -> int:
        """Returns an upper bound of the call's input, in tokens."""
        if move.summary_through_step:
            summary_request = self.summary_messages(move.summary_through_step)
            return InputEstimate(SUMMARY_SYSTEM, ()).upper_bound(summary_request)
        return self._bound(to_come, self._ledger.point.counted)

    def counted_tokens(self, move: CallModel) -> int:
        """Returns the tokens of the upper bound that the provider has counted: those up to the last call."""
        counted = None if move.summary_through_step else self._ledger.point.counted
        return counted[1] if counted else 0

    def texts(self) -> Sequence[str]:
        """Returns the messages of the conversation as JSON."""
        self._follow_compactions()
        return self._texts.of(self._ledger.point.messages)

    def is_worth_caching(self) -> bool:
        """Whether the provider caches a prompt of this length.

        Only the conversation counts, so the next owner decides alike.
        """
        return self._bound(None, None) >= MIN_TOKENS

    def output_tokens(self, move: CallModel) -> int:
        """Returns the maximum tokens of the answer."""
        return summary_output_tokens(self._narrow.tokens) if move.summary_through_step else self._narrow.output_tokens

    def summary_messages(self, through_step: int) -> list[Message]:
        """Returns the request for a summary: at most half as large as a prompt that the provider refused."""
        point = self._ledger.point
        fits = self._narrow.tokens - summary_output_tokens(self._narrow.tokens) - TOKENS_AROUND_SUMMARY
        if point.overflows:
            fits = min(fits, point.refused_tokens) // 2
        return summary_messages(point, through_step, fits * BYTES_PER_TOKEN)

    def _expected(self, to_come: Message | None) -> int:
        """Returns the expected tokens of the next call.

        They are the provider's count, or the estimate after results were cleared. Newer messages count with their
        likely size: with their upper bound, a conversation would be compacted too soon.
        """
        point = self._ledger.point
        conversation = point.conversation
        cleared = (conversation.expected_messages, conversation.expected_tokens)
        counted = point.counted or (cleared if conversation.expected_tokens else None)
        return self._tokens(counted, to_come, likely=True)

    def _bound(self, to_come: Message | None, counted: Counted | None) -> int:
        return self._tokens(counted, to_come)

    def _tokens(self, counted: Counted | None, to_come: Message | None, *, likely: bool = False) -> int:
        self._follow_compactions()
        estimate = self._likely if likely else self._bounds
        return estimate.upper_bound(self._ledger.point.messages, () if to_come is None else (to_come,), counted)

    def _follow_compactions(self) -> None:
        if self._ledger.point.conversation.changes != self._changes:
            self._measure_anew()

    def _measure_anew(self) -> None:
        """Writes and measures the messages again, because a compaction has changed them."""
        self._changes = self._ledger.point.conversation.changes
        self._texts = MessageTexts()
        self._bounds = InputEstimate(self._system, self._tools, texts=self._texts, seen_by=self._seen_by)
        self._likely = InputEstimate(self._system, self._tools, likely_tokens, self._texts, self._seen_by)
