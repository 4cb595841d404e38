"""How much is made up. TENURE_FUZZ_EXAMPLES=300 is a night's run; the default is what `make test` has time for."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings

FACTOR: Final = int(os.environ.get("TENURE_FUZZ_EXAMPLES", "0"))


def examples(default: int) -> settings:
    """So many examples, or as many as the environment says. What failed is shown as it was sent: not made smaller,
    because services remember what they were sent before.
    """
    return settings(
        max_examples=FACTOR or default,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
