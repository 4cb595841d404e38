"""The prices of models: those of the installation's file, else the model provider's as in the package genai-prices.

The list is that of the installed release: tasks never fetch prices, and each reservation keeps the prices by which it
is settled.
"""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, time
from decimal import ROUND_CEILING, Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices

from tenure.domain.budget import NANO_USD, Prices, Rates, Tier, nano_usd_of
from tenure.domain.models import vendor_of
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from genai_prices.types import ModelPrice, Provider

    Price = Decimal | TieredPrices | None

MAX_NAME_CHARACTERS: Final = 200
"""A longer name has no price: the names that were asked for are kept."""


class PriceList:
    """Prices by the name of the model as requested."""

    def __init__(self, own: Mapping[str, Prices] | None = None) -> None:
        self._own = dict(own or {})

    def of(self, model: str, at: datetime) -> Prices | None:
        """Returns the prices on that day; None when the price is unknown."""
        if len(model) > MAX_NAME_CHARACTERS:
            return None
        return self._own.get(model) or listed_price(model, at.astimezone(UTC).date())


@lru_cache(maxsize=1024)
def listed_price(model: str, day: date) -> Prices | None:
    """Returns the package's prices at the beginning of a day. A price of 0 is a price."""
    provider, name = _provider_of(model)
    result = provider.find_model(name)
    if result is None:
        return None
    price = result.get_prices(datetime.combine(day, time(), UTC))
    if price.input_mtok is None or price.output_mtok is None:
        return None
    rates = (price.input_mtok, price.output_mtok, price.cache_write_mtok, price.cache_read_mtok)
    starts = {tier.start for rate in rates if isinstance(rate, TieredPrices) for tier in rate.tiers}
    return Prices(tuple(Tier(start, _rates(price, start)) for start in sorted({0, *starts})))


def _provider_of(model: str) -> tuple[Provider, str]:
    """Returns the provider of a model, and the model's name there.

    Agents in Python also call models of other providers, named `<provider>/<model>`, for example `google/gemini-…`.
    """
    prefix, _, name = model.partition("/")
    if name and prefix in _providers():
        return _providers()[prefix], name
    vendor, name = vendor_of(model)
    return _providers()[vendor], name


@cache
def _providers() -> dict[str, Provider]:
    """Returns the providers by id: the package's own search caches every name that it was ever asked for."""
    return {provider.id: provider for provider in get_snapshot().providers}


def _rates(price: ModelPrice, start: int) -> Rates:
    """Returns the rates of a call with more input than `start`. A cache without its own price costs what input
    costs.
    """
    standard, output = _rate(price.input_mtok, start), _rate(price.output_mtok, start)
    assert standard is not None, "the caller checked it"
    assert output is not None, "the caller checked it"
    written, read = _rate(price.cache_write_mtok, start), _rate(price.cache_read_mtok, start)
    return Rates(standard, output, standard if written is None else written, standard if read is None else read)


def _rate(price: Price, start: int) -> int | None:
    """Returns nano dollars for a million tokens, rounded up."""
    if isinstance(price, TieredPrices):
        price = next((tier.price for tier in reversed(price.tiers) if tier.start <= start and start), price.base)
    return None if price is None else int((price * NANO_USD).to_integral_value(ROUND_CEILING))


# The installation's own prices file.

TABLE: Final = "models"
MAX_USD: Final = 1000
"""The highest price of a million tokens, so that sums fit into an int64."""

_RATES: Final = ("input", "output", "cache_write", "cache_read")
_NEEDED: Final = frozenset({"input", "output"})


def load_prices(path: Path | None) -> PriceList:
    """Reads the file. Raises ConfigurationError with all problems of the file."""
    if path is None:
        return PriceList()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise ConfigurationError([f"{path}: {error}"]) from None
    return read_prices(document, str(path))


def read_prices(document: Mapping[str, Any], name: str) -> PriceList:
    """Reads a file's content, fractions as Decimal; `name` appears in error messages. Raises ConfigurationError."""
    problems = [f"{name}: unknown key {key!r}, the file may have [{TABLE}.<model>]" for key in document if key != TABLE]
    tables = document.get(TABLE, {})
    if not isinstance(tables, dict):
        raise ConfigurationError([f"{name}: {TABLE} must be tables, [{TABLE}.<model>]"])
    own: dict[str, Prices] = {}
    for model, table in tables.items():
        result = list(_problems(table))
        problems += [f"{name}: {TABLE}.{model}: {problem}" for problem in result]
        if not result:
            tiers = [Tier(tier["above_input_tokens"], _read_rates(tier)) for tier in table.get("tiers", [])]
            own[model] = Prices((Tier(0, _read_rates(table)), *tiers))
    if problems:
        raise ConfigurationError(problems)
    return PriceList(own)


def _problems(table: Any) -> Iterator[str]:
    if not isinstance(table, dict):
        yield "must be a table"
        return
    yield from _problems_of_rates(table, "tiers")
    tiers = table.get("tiers", [])
    if not isinstance(tiers, list) or not all(isinstance(tier, dict) for tier in tiers):
        yield f"tiers must be tables, [[{TABLE}.<model>.tiers]]"
        return
    before = 0
    for number, tier in enumerate(tiers, 1):
        yield from (f"tier {number}: {problem}" for problem in _problems_of_rates(tier, "above_input_tokens"))
        above = tier.get("above_input_tokens")
        if not _is_number(above) or isinstance(above, Decimal) or above <= before:
            yield f"tier {number}: above_input_tokens must be a number of tokens, above {before}"
            return
        before = above


def _problems_of_rates(table: Mapping[str, Any], other: str) -> Iterator[str]:
    known = {*_RATES, other}
    yield from (f"there is no {key!r}, only {', '.join(sorted(known))}" for key in table if key not in known)
    yield from (f"{key} is missing" for key in sorted(_NEEDED - table.keys()))
    for key in _RATES:
        value = table.get(key, 0)
        if not _is_number(value) or not 0 <= value <= MAX_USD:
            yield f"{key} must be 0 to {MAX_USD} dollars for a million tokens"
        elif nano_usd_of(Decimal(value)) is None:
            yield f"{key} must have nine decimals at most"


def _is_number(value: Any) -> bool:
    is_decimal = isinstance(value, Decimal) and value.is_finite()
    return is_decimal or (isinstance(value, int) and not isinstance(value, bool))


def _read_rates(table: Mapping[str, Any]) -> Rates:
    input_, output, written, read = (nano_usd_of(Decimal(table.get(key, table["input"]))) for key in _RATES)
    assert input_ is not None, "checked before"
    assert output is not None, "checked before"
    assert written is not None, "checked before"
    assert read is not None, "checked before"
    return Rates(input_, output, written, read)
