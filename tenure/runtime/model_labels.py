"""The labels of a model in metrics, for the worker that calls it and for the ledger that bills it."""

from __future__ import annotations

from typing import Final

from tenure.domain.models import vendor_of
from tenure.runtime.metrics import OTHERS, BoundedNames

MAX_MODELS: Final = 50
"""Models with labels of their own in a process: clients choose the name of a model."""
_named: Final = BoundedNames(MAX_MODELS)


def model_labels(model: str) -> dict[str, str]:
    """Returns the provider and the model, as labels."""
    name = _named(model)
    return {"provider": OTHERS if name == OTHERS else vendor_of(model)[0], "model": name}
