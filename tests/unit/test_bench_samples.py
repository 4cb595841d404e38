"""What many numbers come to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.samples import percentile, spread

numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=50)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_a_percentile_is_the_nearest_sample_and_never_in_between(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_the_99th_of_few_samples_is_the_worst_of_them() -> None:
    assert percentile([3.0, 9.0, 1.0], 0.99) == 9.0


@given(numbers, st.floats(min_value=0, max_value=1))
def test_at_least_the_share_of_all_is_not_above_the_percentile(values: Any, share: float) -> None:
    result = percentile(values, share)
    assert result in values
    assert sum(value <= result for value in values) >= share * len(values)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_what_is_no_share_is_refused(share: Any) -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        percentile([1.0], share)


def test_nothing_has_no_percentile_and_no_spread() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="at least one value"):
        spread([])


def test_a_spread_is_the_middle_the_lowest_and_the_highest() -> None:
    assert spread([3.0, 1.0, 10.0]) == (3.0, 1.0, 10.0)
    assert spread([4.0, 2.0]).median == 3.0
