"""What a check gives: a broken rule, said so that it can be looked up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken: its number ("I3"), the task ("" for none), and what was seen, where."""

    invariant: str
    task_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.task_id or '-'}: {self.message}"
