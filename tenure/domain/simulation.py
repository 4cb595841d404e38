"""How records tell the calls of the model simulator from those that somebody has to pay."""

from __future__ import annotations

from typing import Final

SIMULATED_REQUEST_PREFIX: Final = "req_sim_"
"""The ids that the simulator gives its answers begin with it; an answer's id stands in its bill."""

SIMULATED_MODEL_PREFIX: Final = "sim-"
"""Models that the simulator alone has: so is a call known whose answer, and with it its id, was lost."""
