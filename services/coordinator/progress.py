"""Alive and making progress are two facts. This is the rule for the second; it is told the moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tenure.domain.lost_calls import HeardCall

LONGEST_BACKOFF_SECONDS: Final = 600.0
"""A worker that means to wait longer than this has to let go of the task."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a worker says was done under a claim. `backoff_seconds`: it waits on purpose for so long."""

    sequence: int = 0
    output_tokens: int = 0
    tool_signs: int = 0
    backoff_seconds: float = 0.0
    call: HeardCall | None = None


@dataclass(slots=True)
class ProgressWatch:
    """One claim's progress as heard. Moments are monotonic seconds of this process."""

    patient_until: float
    timeout_seconds: float
    heard: Heard = Heard()

    @classmethod
    def begin(cls, now: float, timeout_seconds: float) -> ProgressWatch:
        """A claim that was granted, or heard of for the first time, now."""
        return cls(now + timeout_seconds, timeout_seconds)

    def hear(self, said: Heard, now: float) -> None:
        """Growth anywhere renews the patience, and so does an announced wait: for the wait and the timeout.

        What grows ends a wait that was announced before: then the timeout alone counts again.
        Output tokens begin at zero in every model call; a call comes after a commit, which is growth itself.
        """
        before = self.heard
        new_call = said.sequence > before.sequence
        grew = new_call or said.output_tokens > before.output_tokens or said.tool_signs > before.tool_signs
        pause_seconds = min(said.backoff_seconds, LONGEST_BACKOFF_SECONDS)
        if grew or (said.backoff_seconds > 0 and before.backoff_seconds <= 0):
            self.patient_until = now + pause_seconds + self.timeout_seconds
        self.heard = said

    def is_stuck(self, now: float) -> bool:
        """Whether nothing grew for the timeout, announced waits not counted."""
        return now > self.patient_until
