"""Model calls whose worker was lost: what they are billed, and what their own worker may say of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.budget import TokenUsage


@dataclass(frozen=True, slots=True)
class HeardCall:
    """A model call as far as its worker told of it. Input 0: the provider has not counted it yet."""

    step: int
    attempt_number: int
    usage: TokenUsage

    @property
    def input_tokens(self) -> int:
        """All input, cached or not."""
        return self.usage.total - self.usage.output_tokens


def settle_lost(input_tokens: int, max_output_tokens: int, heard: HeardCall | None) -> TokenUsage:
    """What a model call of unknown fate is billed: what was heard of it, and unheard its whole input.

    `input_tokens` and `max_output_tokens` are what was set aside. What was heard is a worker's word: out of bounds, it
    must not be what keeps its task from being requeued.
    """
    if heard is None:
        return TokenUsage(input_tokens)
    output = _within(heard.usage.output_tokens, max_output_tokens)
    if heard.input_tokens <= 0:
        return TokenUsage(input_tokens, output)
    read = _within(heard.usage.cache_read_input_tokens, input_tokens)
    created = _within(heard.usage.cache_creation_input_tokens, input_tokens - read)
    plain = _within(heard.usage.input_tokens, input_tokens - read - created)
    return TokenUsage(plain, output, created, read)


def _within(tokens: int, most: int) -> int:
    return max(0, min(tokens, most))
