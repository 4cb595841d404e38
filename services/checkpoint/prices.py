"""What models cost: what the installation says itself, then the provider's prices as the package genai-prices has them.

That list is the installed release's and nothing else: no price is fetched while tasks run, and each reservation keeps
the prices that it is settled by.
"""

from __future__ import annotations

from datetime import UTC, datetime, time
from decimal import ROUND_CEILING, Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices

from tenure.domain.money import NANO_USD, Prices, Rates, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from genai_prices.types import ModelPrice, Provider

    Price = Decimal | TieredPrices | None

PROVIDER: Final = "anthropic"


class PriceList:
    """By the name of the model as it is asked."""

    def __init__(self, own: Mapping[str, Prices] | None = None) -> None:
        self._own = dict(own or {})

    def of(self, model: str, at: datetime) -> Prices | None:
        """What holds on that day. None: nobody knows."""
        return self._own.get(model) or _listed(model, at.astimezone(UTC).date())


@lru_cache(maxsize=1024)
def _listed(model: str, day: date) -> Prices | None:
    """The package's, as of the beginning of a day. Free of charge is a price, too."""
    found = _provider().find_model(model)
    if found is None:
        return None
    price = found.get_prices(datetime.combine(day, time(), UTC))
    if price.input_mtok is None or price.output_mtok is None:
        return None
    rates = (price.input_mtok, price.output_mtok, price.cache_write_mtok, price.cache_read_mtok)
    starts = {tier.start for rate in rates if isinstance(rate, TieredPrices) for tier in rate.tiers}
    return Prices(tuple(Tier(start, _rates(price, start)) for start in sorted({0, *starts})))


@cache
def _provider() -> Provider:
    """Asked directly: the package's own search remembers every name it was ever asked for."""
    return next(provider for provider in get_snapshot().providers if provider.id == PROVIDER)


def _rates(price: ModelPrice, start: int) -> Rates:
    """Of a call with more input than `start`. A cache without a price of its own costs what input costs."""
    standard, output = _rate(price.input_mtok, start), _rate(price.output_mtok, start)
    assert standard is not None, "the caller looked"
    assert output is not None, "the caller looked"
    written, read = _rate(price.cache_write_mtok, start), _rate(price.cache_read_mtok, start)
    return Rates(standard, output, standard if written is None else written, standard if read is None else read)


def _rate(price: Price, start: int) -> int | None:
    """In nano dollars for a million tokens, rounded up."""
    if isinstance(price, TieredPrices):
        price = next((tier.price for tier in reversed(price.tiers) if tier.start <= start and start), price.base)
    return None if price is None else int((price * NANO_USD).to_integral_value(ROUND_CEILING))
