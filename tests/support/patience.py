"""The time that tests wait for an event that must come: enough for a machine many times slower than usual.

Only a failure takes so long. What a test waits for in vain, or a deadline that is to pass, has a time of its own.
"""

from __future__ import annotations

import os
from typing import Final

from tenure.domain.retry import RetryPolicy

PATIENCE_SECONDS: Final = 120.0
"""Until something that has a name has happened: a state, a line of a log, the end of a process."""

CALL_SECONDS: Final = 60.0
"""Until one call is answered."""

AGAIN: Final = RetryPolicy(max_attempts=60, initial_seconds=0.2, factor=1.5, cap_seconds=2.0)
"""As any client does after an error that says try later: a service with many requests at once sends it."""

LONG_LIFE_SECONDS: Final = 60
"""How long an owner, a runner or a lease lives without a renewal: no machine stands still for so long."""

STANDSTILL_SECONDS: Final = 3.0
"""How long a machine may stand still at any moment, as a virtual machine does that is descheduled."""

SHORT_LIFE_SECONDS: Final = 6
"""The life of an owner, a runner or a lease where a test waits for its lapse: longer than a standstill."""

MAX_SLOWNESS: Final = 4.0


def slowness_now() -> float:
    """Returns how many times longer than on an idle machine things may take: the load for each core, between 1 and 4.

    For the times of a load; `longest` for the few times that are promises themselves.
    """
    cores = os.cpu_count() or 1
    return min(MAX_SLOWNESS, max(1.0, os.getloadavg()[0] / cores))


def longest(promised_seconds: float) -> float:
    """Returns how long what is promised within so many seconds may take here, where the machine may stand still."""
    return promised_seconds * slowness_now() + STANDSTILL_SECONDS
