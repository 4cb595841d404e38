"""The seam of rate limits: each call asks for a permit before it is sent. While it waits for one, it is ACCEPTED."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tenure.domain.budget import TokenUsage
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelCallFailed


@dataclass(frozen=True, slots=True)
class LimitedCall:
    """What the limits know of a call. `input_bytes`: the size of its prompt."""

    task_id: str
    tenant: str
    model: str
    priority: Priority
    input_bytes: int
    max_output_tokens: int


class Permit(Protocol):
    """The permission to send one call."""

    def close(self, usage: TokenUsage, failure: ModelCallFailed | None) -> None:
        """Takes what the call used and how it failed. Called once, also for a call that was not sent after all."""


class ModelCallLimits(Protocol):
    """Decides when a call may be sent."""

    def admit_now(self, call: LimitedCall) -> Permit | None:
        """Returns a permit if the call need not wait."""

    async def admit(self, call: LimitedCall) -> Permit:
        """Waits for a permit. A cancelled wait takes none."""


class Unlimited:
    """No limits."""

    def admit_now(self, _call: LimitedCall) -> Permit | None:
        return self

    async def admit(self, _call: LimitedCall) -> Permit:
        return self

    def close(self, usage: TokenUsage, failure: ModelCallFailed | None) -> None:
        """Keeps nothing."""
