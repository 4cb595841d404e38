"""What the clients of Tenure as an MCP server may spend."""

from __future__ import annotations

from decimal import Decimal

import pytest

from edges.mcp_server.settings import McpServerSettings
from tenure.domain.errors import InvalidRequest


@pytest.mark.parametrize("wanted", [float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1.01])
def test_a_cost_that_the_cap_does_not_allow_is_refused(wanted: float) -> None:
    with pytest.raises(InvalidRequest):
        McpServerSettings(Decimal(1)).cost_of(wanted)


def test_a_cost_within_the_cap() -> None:
    settings = McpServerSettings(Decimal(1))
    assert [settings.cost_of(wanted) for wanted in (None, 0.5, 1.0)] == [Decimal(1), Decimal("0.5"), Decimal(1)]


def test_without_a_cap_the_refusal_names_none() -> None:
    with pytest.raises(InvalidRequest) as refused:
        McpServerSettings(None).cost_of(-1.0)
    assert "at most" not in str(refused.value)
