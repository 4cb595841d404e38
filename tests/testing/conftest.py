"""The stack of these tests ends with them: beside the tests of other folders it would use a fifth of a core."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tenure.testing.pytest_plugin import SharedStack


@pytest.fixture(scope="package")
def tenure_stack(tenure_options: dict[str, Any]) -> Iterator[SharedStack]:
    """As the plugin's fixture, for this package only."""
    shared = SharedStack(tenure_options)
    yield shared
    shared.stop()
