"""How long owners and runners of a whole stack live without a renewal: `StackOptions(environment={"*": LONG_LIFE})`.

A stack whose tests freeze workers or kill tool services, and wait for the lapse, has SHORT_LIFE. Both outlast a machine
that stands still for three seconds at any moment.
"""

from __future__ import annotations

from typing import Final

from tests.support.patience import LONG_LIFE_SECONDS, SHORT_LIFE_SECONDS


def _living(seconds: int) -> dict[str, str]:
    return {
        "TENURE_COORDINATOR_TTL_SECONDS": str(seconds),
        "TENURE_COORDINATOR_START_TIMEOUT_SECONDS": str(seconds),
        "TENURE_COORDINATOR_RENEW_INTERVAL_SECONDS": "0.5",
        "TENURE_TOOLS_RUNNER_TTL_SECONDS": str(seconds),
        "TENURE_TOOLS_RUNNER_RENEW_INTERVAL_SECONDS": "0.5",
    }


LONG_LIFE: Final = _living(LONG_LIFE_SECONDS)
SHORT_LIFE: Final = _living(SHORT_LIFE_SECONDS)
