"""Tokens and money together, and what a call costs: counted here again, apart from the ledger's own arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Final

from tenure.domain.money import MOST_NANO_USD

if TYPE_CHECKING:
    from tenure.domain.budget import TokenUsage
    from tenure.domain.money import Prices


@dataclass(frozen=True, slots=True)
class Amount:
    """So many tokens, and so much money in nano dollars: as text, 120 (5000 n$)."""

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.nano_usd + other.nano_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd)

    @property
    def above_nothing(self) -> Amount:
        """Each of both, or nothing where it is below."""
        return Amount(max(0, self.tokens), max(0, self.nano_usd))

    def __str__(self) -> str:
        return f"{self.tokens}" + (f" ({self.nano_usd} n$)" if self.nano_usd else "")


NOTHING: Final = Amount()


def charge(prices: Prices | None, usage: TokenUsage) -> int:
    """What a call costs in nano dollars: by the highest tier that its input is beyond, rounded up, bounded."""
    if prices is None:
        return 0
    input_tokens = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    rates = prices.tiers[0].rates
    for tier in prices.tiers:
        rates = tier.rates if input_tokens > tier.above_input_tokens else rates
    parts = (
        (usage.input_tokens, rates.input),
        (usage.output_tokens, rates.output),
        (usage.cache_creation_input_tokens, rates.cache_creation_input),
        (usage.cache_read_input_tokens, rates.cache_read_input),
    )
    return min(MOST_NANO_USD, ceil(sum((Fraction(tokens * rate, 10**6) for tokens, rate in parts), Fraction())))
