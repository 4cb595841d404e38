"""Counts the model calls of this worker: their outcomes and how long they took."""

from __future__ import annotations

from typing import Final

from tenure.domain.retry import FailureClass
from tenure.runtime.observability import metrics
from tenure.runtime.observability.metrics import model_labels

ANSWERED: Final = "ANSWERED"
OTHER: Final = "OTHER"


def count_model_call(model: str, seconds: float, error_class: str = "") -> None:
    """Counts a call that ended. `error_class`: of its failure, "" for an answer."""
    labels = model_labels(model)
    outcome = (error_class if error_class in FailureClass.__members__ else OTHER) if error_class else ANSWERED
    metrics.count("tenure_model_calls_total", outcome=outcome, **labels)
    metrics.observe("tenure_model_call_seconds", seconds, **labels)
