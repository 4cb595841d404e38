"""What `tenure tenants usage` says that calls cost."""

from __future__ import annotations

import pytest

from tenure.cli.tenants import cost_text
from tenure.v1 import tenant_service_pb2 as pb


@pytest.mark.parametrize(
    ("billed", "text"),
    [
        (pb.UsageSum(calls=3, nano_usd=2_000_000_000), "$2.00"),
        (pb.UsageSum(calls=3, unpriced_calls=3), "unpriced"),
        (pb.UsageSum(calls=3, simulated_calls=3), "simulated"),
        (pb.UsageSum(calls=3, simulated_calls=3, simulated_nano_usd=7, nano_usd=7), "simulated"),
        (pb.UsageSum(calls=5, unpriced_calls=2, nano_usd=1_000_000_000), "$1.00, 2 unpriced"),
        (
            pb.UsageSum(calls=9, simulated_calls=4, simulated_nano_usd=500_000_000, nano_usd=1_500_000_000),
            "$1.00, 4 simulated",
        ),
        (pb.UsageSum(calls=6, simulated_calls=4, unpriced_calls=2), "2 unpriced, 4 simulated"),
    ],
)
def test_a_dollar_sign_means_dollars(billed: pb.UsageSum, text: str) -> None:
    assert cost_text(billed) == text
