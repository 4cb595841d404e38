"""What model calls cost. Money is whole nano dollars (10^-9 US dollar) everywhere: sums are exact, there are no floats.

A rate is in nano dollars for a million tokens, as providers print their prices: $5 is 5 * 10^9.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tenure.domain.budget import TokenUsage

NANO_USD: Final = 10**9
"""In one dollar."""

RATE_TOKENS: Final = 10**6
"""What a rate is for."""

MOST_NANO_USD: Final = 10**15
"""$1,000,000: the highest cap, and the most that one call is ever charged. Sums of it stay inside an int64."""


@dataclass(frozen=True, slots=True)
class Rates:
    """For a million tokens each, in nano dollars."""

    input: int
    output: int
    cache_creation_input: int
    cache_read_input: int


@dataclass(frozen=True, slots=True)
class Tier:
    """The rates of all tokens of a call whose input, cached or not, is more than so many tokens."""

    above_input_tokens: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one model, by the length of the input; the first tier is above 0 and holds for a call without input too."""

    tiers: tuple[Tier, ...]

    @classmethod
    def flat(cls, rates: Rates) -> Prices:
        """The same for every length."""
        return cls((Tier(0, rates),))

    def rates(self, input_tokens: int) -> Rates:
        """What holds for a call with so much input."""
        reached = [tier for tier in self.tiers if tier.above_input_tokens < input_tokens]
        return (reached[-1] if reached else self.tiers[0]).rates


def cost(prices: Prices | None, usage: TokenUsage) -> int:
    """What the provider charges, in nano dollars, rounded up; nothing without a price."""
    if prices is None:
        return 0
    rates = prices.rates(usage.total - usage.output_tokens)
    charged = _rounded_up(
        usage.input_tokens * rates.input
        + usage.output_tokens * rates.output
        + usage.cache_creation_input_tokens * rates.cache_creation_input
        + usage.cache_read_input_tokens * rates.cache_read_input
    )
    return min(charged, MOST_NANO_USD)


def most_cost(prices: Prices | None, input_tokens: int, output_tokens: int) -> int:
    """An upper bound of `cost` for a call of at most so many tokens, however its input comes to be cached."""
    if prices is None:
        return 0
    dearest = _dearest(prices, input_tokens)
    return _rounded_up(input_tokens * dearest.input + output_tokens * dearest.output)


def affordable_output(prices: Prices | None, input_tokens: int, nano_usd: int) -> int | None:
    """The most output for which `most_cost` stays within so much money; below 0: not even the input. None: any."""
    if prices is None:
        return None
    dearest = _dearest(prices, input_tokens)
    left = nano_usd * RATE_TOKENS - input_tokens * dearest.input
    if left < 0:
        return -1
    return left // dearest.output if dearest.output else None


def usd(nano_usd: int) -> str:
    """For people: "$0.0123", four decimals at least and no zeros after those; exact."""
    whole, fraction = divmod(abs(nano_usd), NANO_USD)
    digits = f"{fraction:09d}".rstrip("0").ljust(4, "0")
    return f"{'-' if nano_usd < 0 else ''}${whole:,}.{digits}"


def money_text(nano_usd: int) -> str:
    """`$12.35`, `$0.50`, `$0.019`: cents, and below a dollar two significant digits; `usd` is exact."""
    dollars = Decimal(nano_usd) / NANO_USD
    places = max(2, 1 - dollars.adjusted()) if nano_usd else 2
    dollars = round(dollars, places)
    places = max(2, 1 - dollars.adjusted()) if nano_usd else 2  # rounding may have added a digit: 0.0999 is 0.10
    return f"{'-' if dollars < 0 else ''}${abs(dollars):,.{places}f}"


def nano_usd_of(dollars: Decimal) -> int | None:
    """None: it is not a whole number of nano dollars, or beyond any use."""
    if not dollars.is_finite() or abs(dollars) > MOST_NANO_USD:
        return None
    nano = dollars * NANO_USD
    return int(nano) if nano == nano.to_integral_value() else None


def _dearest(prices: Prices, input_tokens: int) -> Rates:
    """The highest rates that a call of at most so much input can meet; every kind of input at the dearest one."""
    reached = [tier.rates for tier in prices.tiers if tier.above_input_tokens < input_tokens]
    some = reached or [prices.tiers[0].rates]
    dearest_input = max(max(rates.input, rates.cache_creation_input, rates.cache_read_input) for rates in some)
    return Rates(dearest_input, max(rates.output for rates in some), dearest_input, dearest_input)


def _rounded_up(rate_tokens: int) -> int:
    return -(-rate_tokens // RATE_TOKENS)
