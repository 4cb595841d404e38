"""Tells the calls of the model simulator from paid model calls in the ledger's records."""

from __future__ import annotations

from typing import Final

SIMULATED_REQUEST_PREFIX: Final = "req_sim_"
"""The prefix of the request ids in the simulator's answers. A bill contains the request id of its answer."""

SIMULATED_MODEL_PREFIX: Final = "sim-"
"""The prefix of models that only the simulator has. It identifies a call whose answer, and so the request id, was lost.
"""
