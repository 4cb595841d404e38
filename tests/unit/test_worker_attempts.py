"""The bill of a model call that its worker cancels, as a drain and a cancel do."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.model_attempt import AttemptWatch
from tenure.domain.budget import TokenUsage
from tenure.domain.entries import ModelAttempt, ModelFailure


@dataclass
class Cancelled:
    """A call as it was when it was cancelled."""

    usage: TokenUsage
    request_id: str = "r1"


def attempt_of(input_tokens: int) -> ModelAttempt:
    return ModelAttempt(1, "m", reserved_tokens=150, input_tokens=input_tokens, max_output_tokens=50)


def watch_of(attempt: ModelAttempt) -> AttemptWatch:
    ledger: Any = SimpleNamespace(point=SimpleNamespace(open_attempt=attempt, step=3))

    def nothing(*_: object) -> None: ...

    progress = SimpleNamespace(begin_call=nothing, announce_backoff=nothing)
    held_task: Any = SimpleNamespace(progress=progress, live=SimpleNamespace(begin=nothing))
    return AttemptWatch(held_task, ledger)


@pytest.mark.parametrize(
    ("known", "billed"),
    [
        (TokenUsage(), TokenUsage()),
        (TokenUsage(input_tokens=90, output_tokens=7), TokenUsage(input_tokens=90, output_tokens=7)),
        (TokenUsage(output_tokens=7), TokenUsage(input_tokens=100, output_tokens=7)),
    ],
    ids=["no answer began", "the input is stated", "the input would come at the end"],
)
async def test_a_cancelled_call_is_billed_for_its_input(known: TokenUsage, billed: TokenUsage) -> None:
    watch = watch_of(attempt_of(100))
    await watch.begin(Cancelled(known), 60.0)
    ((step, failure),) = watch.settlement()
    assert isinstance(failure, ModelFailure)
    assert (step, failure.error_class, failure.usage) == (3, "INTERRUPTED", billed)


async def test_a_call_that_was_never_made_costs_nothing() -> None:
    ((_, failure),) = watch_of(attempt_of(100)).settlement()
    assert isinstance(failure, ModelFailure)
    assert failure.usage == TokenUsage()
