"""How many examples generated tests draw: few in `make test`, TENURE_EXAMPLES times as many in `make faults`."""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

FACTOR: Final = int(os.environ.get("TENURE_EXAMPLES", "1"))


def examples(default: int) -> int:
    """The number of examples of a test that draws `default` in `make test`."""
    return default * FACTOR


def pytest_configure() -> None:
    """Hypothesis fails an example that takes longer than 200 ms, and data that is slow to draw: on a busy machine any
    is.
    """
    settings.register_profile(
        "patient", max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # before the tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test that Hypothesis generates, so that `make faults` runs it with more examples."""
    for item in items:
        if "hypothesis" in item.keywords:
            item.add_marker(pytest.mark.fuzz)
