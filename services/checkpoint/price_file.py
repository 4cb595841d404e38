"""What the installation says that models cost, in a file of its own:

    [models."claude-opus-4-8"]         # dollars for a million tokens
    input = 4.5
    output = 22.5
    cache_write = 5.625                # absent: as input
    cache_read = 0.45                  # absent: as input

    [[models."claude-opus-4-8".tiers]] # of all tokens of a call with more input than that
    above_input_tokens = 200_000
    input = 9
    output = 33.75

A model in it has none of its prices from elsewhere.
"""

from __future__ import annotations

import tomllib
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from services.checkpoint.prices import PriceList
from tenure.domain.money import Prices, Rates, Tier, nano_usd_of
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TABLE: Final = "models"
MOST_USD: Final = 1000
"""For a million tokens. So sums stay inside an int64."""

_RATES: Final = ("input", "output", "cache_write", "cache_read")
_NEEDED: Final = frozenset({"input", "output"})


def load_prices(path: Path | None) -> PriceList:
    """Raises ConfigurationError with all that is wrong in the file."""
    if path is None:
        return PriceList()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise ConfigurationError([f"{path}: {error}"]) from None
    return read_prices(document, str(path))


def read_prices(document: Mapping[str, Any], name: str) -> PriceList:
    """From a file's content, its fractions as Decimal; `name` is told with what is wrong. ConfigurationError."""
    problems = [f"{name}: there is only [{TABLE}.<model>], no {key!r}" for key in document if key != TABLE]
    tables = document.get(TABLE, {})
    if not isinstance(tables, dict):
        raise ConfigurationError([f"{name}: {TABLE} must be tables, [{TABLE}.<model>]"])
    own: dict[str, Prices] = {}
    for model, table in tables.items():
        found = list(_problems(table))
        problems += [f"{name}: {TABLE}.{model}: {problem}" for problem in found]
        if not found:
            tiers = [Tier(tier["above_input_tokens"], _rates(tier)) for tier in table.get("tiers", [])]
            own[model] = Prices((Tier(0, _rates(table)), *tiers))
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
        if not _is_number(value) or not 0 <= value <= MOST_USD:
            yield f"{key} must be 0 to {MOST_USD} dollars for a million tokens"
        elif nano_usd_of(Decimal(value)) is None:
            yield f"{key} must have nine decimals at most"


def _is_number(value: Any) -> bool:
    is_decimal = isinstance(value, Decimal) and value.is_finite()
    return is_decimal or (isinstance(value, int) and not isinstance(value, bool))


def _rates(table: Mapping[str, Any]) -> Rates:
    input_, output, written, read = (nano_usd_of(Decimal(table.get(key, table["input"]))) for key in _RATES)
    assert input_ is not None, "checked before"
    assert output is not None, "checked before"
    assert written is not None, "checked before"
    assert read is not None, "checked before"
    return Rates(input_, output, written, read)
