"""What is told of a claim with every renewal: being alive and making progress are two facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from tenure.domain.budget import TokenUsage
from tenure.domain.lost_calls import HeardCall
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.task import heard_call_to_wire
from tenure.wire.times import duration


@dataclass(frozen=True, slots=True)
class _Call:
    """The newest model call. `usage` tells what it is billed so far."""

    step: int
    attempt_number: int
    usage: Callable[[], TokenUsage]

    def heard(self) -> HeardCall:
        return HeardCall(self.step, self.attempt_number, self.usage())


def _nobody_asks() -> None:
    """Between renewals nobody wants to know."""


@dataclass(slots=True)
class ProgressHeard:
    """The progress of one claim. `backoff_until` is a monotonic moment, 0: nobody waits on purpose.

    `call_went_on`: the model call gave something that was not told yet; `on_call` is called when it did.
    """

    sequence: int = 0
    tool_signs: int = 0
    backoff_until: float = 0.0
    call_went_on: bool = False
    on_call: Callable[[], None] = _nobody_asks
    _call: _Call | None = None

    def begin_call(self, step: int, attempt_number: int, usage: Callable[[], TokenUsage]) -> None:
        """A model call is about to be sent. It is told of until the next one: its answer may never be committed."""
        self._call = _Call(step, attempt_number, usage)

    def hear_call(self) -> None:
        """The call in flight has given something, or has ended."""
        self.call_went_on = True
        self.on_call()

    def hear_tool(self) -> None:
        """A running tool gave a sign of life."""
        self.tool_signs += 1

    def announce_backoff(self, seconds: float) -> None:
        """From now on this long nothing will happen, on purpose."""
        self.backoff_until = monotonic() + seconds

    def to_wire(self) -> pb.Progress:
        """The message of a renewal; the backoff counts from its sending."""
        left = self.backoff_until - monotonic()
        call = None if self._call is None else self._call.heard()
        return pb.Progress(
            sequence=self.sequence,
            output_tokens=0 if call is None else call.usage.output_tokens,
            tool_signs=self.tool_signs,
            backoff=duration(left) if left > 0 else None,
            call=None if call is None else heard_call_to_wire(call),
        )
