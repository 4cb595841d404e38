"""What calls cost: exact, rounded up once, by the prices that the provider prints."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from services.checkpoint.prices import PriceList, listed_price, load_prices
from tenure.domain.budget import (
    Prices,
    Rates,
    Tier,
    TokenUsage,
    affordable_output,
    cost,
    most_cost,
    nano_usd_of,
    usd,
)
from tenure.runtime.settings import ConfigurationError

NOW = datetime(2026, 11, 1, tzinfo=UTC)
OPUS = Prices.flat(Rates(5 * 10**9, 25 * 10**9, 6_250_000_000, 500_000_000))
LONG = Rates(10 * 10**9, 40 * 10**9, 10 * 10**9, 10 * 10**9)


def test_each_kind_of_token_is_charged_by_its_own_rate() -> None:
    assert cost(OPUS, TokenUsage(1000, 100, 10, 1)) == 1000 * 5000 + 100 * 25_000 + 10 * 6250 + 500
    assert cost(None, TokenUsage(1000, 100)) == 0


def test_a_fraction_is_rounded_up_once_for_the_whole_call() -> None:
    cheap = Prices.flat(Rates(1, 1, 1, 1))
    assert cost(cheap, TokenUsage(1, 1, 1, 1)) == 1
    assert cost(cheap, TokenUsage(10**6, 1)) == 2
    assert cost(cheap, TokenUsage()) == 0


def test_a_long_input_costs_more_for_all_of_its_tokens() -> None:
    prices = Prices((*OPUS.tiers, Tier(200_000, LONG)))
    assert cost(prices, TokenUsage(200_000, 1)) == 200_000 * 5000 + 25_000
    assert cost(prices, TokenUsage(200_000, 1, 0, 1)) == 200_001 * 10_000 + 40_000
    assert most_cost(prices, 200_001, 1) == 200_001 * 10_000 + 40_000


def test_the_bound_takes_all_input_for_written_to_the_cache() -> None:
    assert most_cost(OPUS, 100, 10) == 100 * 6250 + 10 * 25_000
    assert affordable_output(OPUS, 100, 100 * 6250 + 10 * 25_000 - 1) == 9
    assert affordable_output(OPUS, 100, 100 * 6250 - 1) == -1


def test_without_a_price_for_it_any_output_is_affordable() -> None:
    assert affordable_output(None, 100, 0) is None
    assert affordable_output(Prices.flat(Rates(1, 0, 1, 1)), 1, 1) is None


@pytest.mark.parametrize(
    ("nano_usd", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (12_300_000, "$0.0123"),
        (1_234_500_000_000, "$1,234.50"),
        (-500_000_000, "-$0.50"),
    ],
)
def test_money_is_shown_in_dollars_and_exact(nano_usd: int, text: str) -> None:
    assert usd(nano_usd) == text


def test_dollars_are_taken_exactly_or_not_at_all() -> None:
    assert nano_usd_of(Decimal("0.000000001")) == 1
    for odd in ("0.0000000001", "NaN", "Infinity", "1e99"):
        assert nano_usd_of(Decimal(odd)) is None


def test_the_providers_prices_are_known_by_model_and_day() -> None:
    prices = PriceList()
    assert prices.of("claude-opus-4-8", NOW) == OPUS
    assert prices.of("claude-opus-4-8-20260101", NOW) == OPUS
    assert prices.of("openai/gpt-4o", NOW) is not None
    assert prices.of("gpt-4o", NOW) is None, "a name without the prefix is one of Anthropic"
    assert prices.of("openai/claude-opus-4-8", NOW) is None
    assert prices.of("google/gemini-2.5-pro", NOW) is not None
    assert prices.of("nobody/gemini-2.5-pro", NOW) is None
    assert prices.of("sim-hello", NOW) is None
    before = prices.of("claude-opus-4-6", datetime(2026, 3, 12, tzinfo=UTC))
    after = prices.of("claude-opus-4-6", datetime(2026, 3, 13, tzinfo=UTC))
    assert before is not None
    assert [tier.above_input_tokens for tier in before.tiers] == [0, 200_000]
    assert after == OPUS


def test_long_name_has_no_price_and_is_not_kept() -> None:
    before = listed_price.cache_info().currsize
    assert PriceList().of("claude-opus-4-8" + "-" * 200, NOW) is None
    assert listed_price.cache_info().currsize == before


FILE = """
[models."claude-opus-4-8"]
input = 4.5
output = 22.500000001
cache_read = 0

[[models."claude-opus-4-8".tiers]]
above_input_tokens = 200_000
input = 10
output = 40
"""


def test_prices_file_outranks_the_package(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(FILE)
    own = Rates(4_500_000_000, 22_500_000_001, 4_500_000_000, 0)
    assert load_prices(path).of("claude-opus-4-8", NOW) == Prices((Tier(0, own), Tier(200_000, LONG)))
    assert load_prices(path).of("claude-sonnet-5", NOW) == PriceList().of("claude-sonnet-5", NOW)
    assert load_prices(None).of("claude-opus-4-8", NOW) == OPUS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[prices]", "unknown key 'prices', the file may have [models.<model>]"),
        ("models = 1", "models must be tables"),
        ("[models]\nm = 1", "models.m: must be a table"),
        ("[models.m]\ninput = 1", "models.m: output is missing"),
        ("[models.m]\ninput = -1\noutput = 1", "models.m: input must be 0 to 1000 dollars"),
        ("[models.m]\ninput = nan\noutput = 1", "models.m: input must be 0 to 1000 dollars"),
        ("[models.m]\ninput = true\noutput = 1", "models.m: input must be 0 to 1000 dollars"),
        ("[models.m]\ninput = 1.0000000001\noutput = 1", "models.m: input must have nine decimals at most"),
        ("[models.m]\ninput = 1\noutput = 1\ncached = 1", "models.m: there is no 'cached'"),
        ("[models.m]\ninput = 1\noutput = 1\ntiers = 1", "models.m: tiers must be tables"),
        ("[models.m]\ninput = 1\noutput = 1\n[[models.m.tiers]]\ninput = 1", "tier 1: output is missing"),
        (
            "[models.m]\ninput = 1\noutput = 1\n[[models.m.tiers]]\ninput = 1\noutput = 1\nabove_input_tokens = 0",
            "tier 1: above_input_tokens must be a number of tokens, above 0",
        ),
        ("[models", "prices.toml"),
    ],
)
def test_invalid_prices_file_stops_the_start(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load_prices(path)
    assert expected in str(refused.value)
