"""What a function asks of its loop. One at a time; the function waits for the answer."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.control import Call
from tenure.domain.entries import ControlFailure, ControlStep


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Answered with the step as it is recorded, or None: make it now, in at most this time."""

    step: int
    name: str
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Answered when it is in the ledger."""

    step: int
    fact: ControlStep


@dataclass(frozen=True, slots=True)
class CallTools:
    """Answered with the outcomes, in order."""

    step: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """The function is done, after so many steps."""

    step: int
    result_json: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The function is done with."""

    failure: ControlFailure


Request = BeginStep | RecordStep | CallTools | Returned | Raised
