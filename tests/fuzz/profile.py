"""The settings of Hypothesis for tests that send requests to services."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

from tests.support.examples import FACTOR


def examples(default: int) -> settings:
    """So many examples, times TENURE_EXAMPLES. A failure is shown as it was sent and not made smaller, because services
    remember earlier requests.
    """
    return settings(
        max_examples=default * FACTOR,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
