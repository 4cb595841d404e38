"""What is told of a claim with every renewal: being alive and making progress are two facts."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.times import duration

CHARACTERS_PER_TOKEN = 4
"""Only until the provider says the true number: what a lost call is billed, and a sign that text still comes."""


@dataclass(slots=True)
class ProgressHeard:
    """The progress of one claim. `backoff_until` is a monotonic moment, 0: nobody waits on purpose."""

    sequence: int = 0
    output_tokens: int = 0
    tool_signs: int = 0
    backoff_until: float = 0.0

    def hear_text(self, characters: int) -> None:
        """A model call in flight has given so many characters since its beginning."""
        self.output_tokens = -(-characters // CHARACTERS_PER_TOKEN)

    def hear_tool(self) -> None:
        """A running tool gave a sign of life."""
        self.tool_signs += 1

    def announce_backoff(self, seconds: float) -> None:
        """From now on this long nothing will happen, on purpose."""
        self.backoff_until = monotonic() + seconds

    def to_wire(self) -> pb.Progress:
        """The message of a renewal; the backoff counts from its sending."""
        left = self.backoff_until - monotonic()
        return pb.Progress(
            sequence=self.sequence,
            output_tokens=self.output_tokens,
            tool_signs=self.tool_signs,
            backoff=duration(left) if left > 0 else None,
        )
