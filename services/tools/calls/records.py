"""What the tool service's rules and statements speak of: a call that is asked for, and a call as it is recorded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from tenure.domain.fencing import Claims, Fence
from tenure.domain.in_doubt import Happened, Resolution
from tenure.domain.tools import CallState, EffectClass, Outcome
from tenure.v1 import tool_pb2
from tenure.wire.tool import outcome_to_domain, outcome_to_wire


class CallKey(NamedTuple):
    """A call's name: unique in the world."""

    task_id: UUID
    call_id: str

    @property
    def idempotency_key(self) -> str:
        """What providers are given to recognise a repeat by; the same for every attempt."""
        return f"{self.task_id}/{self.call_id}"


@dataclass(frozen=True, slots=True)
class CallRequest:
    """An Execute, checked. `clear`: its outcome when that is known without running anything. `traceparent`: the span
    of who asks, "" for none. `timeout_seconds`: how long its task lets it run; 0: as long as the tool does.
    `output_limit_bytes`: how much the model can be shown, 0: as much as the tool may. `resolution`: a person's word,
    for a call in doubt. `acts_elsewhere`: as its tool says of itself.
    """

    key: CallKey
    claims: Claims
    tool: str
    effect_class: EffectClass
    arguments_json: bytes
    clear: Outcome | None = None
    traceparent: str = ""
    timeout_seconds: float = 0.0
    output_limit_bytes: int = 0
    resolution: Resolution | None = None
    acts_elsewhere: bool = False

    @property
    def fence(self) -> Fence:
        return self.claims.fence

    @property
    def size_bytes(self) -> int:
        """What it brings along."""
        message = self.resolution.decision if self.resolution is not None else None
        return len(self.arguments_json) + (len(message.result.encode()) if isinstance(message, Happened) else 0)

    @property
    def arguments_hash(self) -> bytes:
        """Tells a repeat from a call_id that is used twice: the tool and the exact bytes of its arguments."""
        return hashlib.sha256(self.tool.encode() + b"\0" + self.arguments_json).digest()


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call's record, read under its lock. `runner_gone`: proven, which is more than not being alive. `doubt_note`:
    what the tool said of a doubt.
    """

    key: CallKey
    effect_class: EffectClass
    arguments_hash: bytes
    state: CallState
    call_attempt: int
    fence: Fence
    runner_id: UUID | None
    runner_alive: bool
    outcome: bytes | None
    runner_gone: bool = False
    doubt_note: str = ""


@dataclass(frozen=True, slots=True)
class CallSummary:
    """A call as Fence tells it."""

    call_id: str
    tool: str
    effect_class: EffectClass
    state: CallState
    call_attempt: int
    epoch: int
    outcome: Outcome | None
    started_at: datetime | None


def pack_outcome(outcome: Outcome) -> bytes:
    """As it is stored: the message of the contract."""
    return outcome_to_wire(outcome).SerializeToString()


def unpack_outcome(packed: bytes) -> Outcome:
    return outcome_to_domain(tool_pb2.Outcome.FromString(packed))
