"""The port of the rate limits: each call needs a permit before it is sent. While it waits for one, it is ACCEPTED."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tenure.domain.budget import TokenUsage
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelCallFailed, ModelRequest


@dataclass(frozen=True, slots=True)
class LimitedCall:
    """A call as the limits see it. `input_bytes`: the size of its prompt. `is_new`: the first call of its task.

    `image_bytes`: the part of that size which is images, beyond what they cost as text.
    """

    task_id: str
    tenant: str
    model: str
    priority: Priority
    input_bytes: int
    max_output_tokens: int
    is_new: bool = False
    image_bytes: int = 0


class Permit(Protocol):
    """The permission to send one call. `is_moving`: an endpoint refused it, and no other one has it yet."""

    is_moving: bool

    async def answer(self, request: ModelRequest, call: ModelCall) -> ModelAnswer:
        """Sends the call once and returns its answer. Raises ModelCallFailed."""

    def close(self, usage: TokenUsage, failure: ModelCallFailed | None) -> None:
        """Takes what the call used and how it failed. Called once, also for a call that was not sent after all."""


class ModelCallLimits(Protocol):
    """Decides when a call may be sent, and to which endpoint."""

    def admit_now(self, call: LimitedCall) -> Permit | None:
        """Returns a permit if the call need not wait."""

    async def admit(self, call: LimitedCall) -> Permit:
        """Waits for a permit. A cancelled wait takes none. Raises ModelCallFailed if the call cannot be sent."""

    async def count(self, request: ModelRequest) -> int | None:
        """Returns a provider's count of the input in tokens, or None."""
