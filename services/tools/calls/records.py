"""The data of calls: a call as requested, and a call as recorded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from tenure.domain.effect_keys import Effect
from tenure.domain.fencing import Claims, Fence
from tenure.domain.in_doubt import Happened, Resolution
from tenure.domain.tool_schemas import OWN_FORM, ShownSchema
from tenure.domain.tools import CallState, EffectClass, Outcome
from tenure.v1 import tool_pb2
from tenure.wire.tool import outcome_to_domain, outcome_to_wire

MAX_NOTE_CHARACTERS: Final = 2000


class CallKey(NamedTuple):
    """Identifies a call among the calls of all tasks."""

    task_id: UUID
    call_id: str


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A validated Execute request.

    `clear`: the call's outcome when it is known without running the tool (unknown tool, invalid arguments).
    `traceparent`: the caller's span, "" for none. `timeout_seconds`: the task's limit for the call, 0: the tool's
    limit. `output_limit_bytes`: the output that the model can read, 0: the tool's limit. `resolution`: a person's
    decision about the call in doubt. `acts_elsewhere`: see `Tool.acts_elsewhere`. `runs_at_caller`: the caller runs the
    call itself. `own_outcome`: what the caller's run of the attempt `own_outcome.call_attempt` came to. `undoes`: the
    call that this one undoes, "<task_id>/<call_id>". `effect`: of a tool with an effect key; `waits_for_effect`: the
    call waits for another one that makes the effect, up to `patience_seconds`. `idempotency_key`: of its effect key;
    "": the call's own. `has_check`: a tool says whether the call happened. `form`: turns its arguments into the tool's
    own, which rules read. `needs_approval`: the task asks a person about it, whatever the rules say.
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
    runs_at_caller: bool = False
    own_outcome: Outcome | None = None
    has_check: bool = False
    undoes: str = ""
    effect: Effect | None = None
    waits_for_effect: bool = True
    patience_seconds: float = 0.0
    idempotency_key: str = ""
    form: ShownSchema = OWN_FORM
    needs_approval: bool = False

    @property
    def has_recorded_key(self) -> bool:
        """Whether its idempotency key is recorded beside it, or another call may have its effect key."""
        return self.effect is not None or bool(self.undoes)

    @property
    def presented_key(self) -> str:
        """The key by which other systems recognise a repeat: of its effect key, of the undo, or the call's own."""
        if self.idempotency_key:
            return self.idempotency_key
        return self._undo_key if self.undoes else f"{self.key.task_id}/{self.key.call_id}"

    @property
    def _undo_key(self) -> str:
        """The idempotency key of a call that undoes another one: the same in all undos of that call."""
        tenant = hashlib.sha256(self.claims.tenant.encode()).hexdigest()  # a worker names the undone call
        return f"{self.undoes}/undo/{tenant[:12]}"

    @property
    def fence(self) -> Fence:
        return self.claims.fence

    @property
    def is_approved(self) -> bool:
        """Whether a person has approved this very call, as its token says."""
        return f"{self.key.call_id}:{self.arguments_hash.hex()}" in self.claims.approvals

    @property
    def size_bytes(self) -> int:
        """The bytes of its arguments, of its resolution's result and of its caller's outcome."""
        decision = self.resolution.decision if self.resolution is not None else None
        resolved_bytes = len(decision.result.encode()) if isinstance(decision, Happened) else 0
        own_bytes = len(self.own_outcome.content.encode()) if self.own_outcome is not None else 0
        return len(self.arguments_json) + resolved_bytes + own_bytes

    @property
    def arguments_hash(self) -> bytes:
        """The SHA-256 of the tool's name and the exact bytes of the arguments.

        It distinguishes a repeat from a call_id that is used for two calls.
        """
        return hashlib.sha256(self.tool.encode() + b"\0" + self.arguments_json).digest()


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call record, read under its row lock.

    `runner_alive`: the runner's row was renewed in time. `runner_gone`: there is proof that the runner's life is over,
    which is more than a missed renewal. `doubt_note`: the tool's message about the call in doubt. `begun_before`: an
    earlier attempt may have had its effect. `idempotency_key`: under which it ran, if that is not the call's own.
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
    begun_before: bool = False
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class CallSummary:
    """A call record as Fence returns it."""

    call_id: str
    tool: str
    effect_class: EffectClass
    state: CallState
    call_attempt: int
    epoch: int
    outcome: Outcome | None
    started_at: datetime | None


def doubt_note(message: str) -> str:
    """Returns the message about a doubt as the record stores it."""
    return message.replace("\0", "\ufffd")[:MAX_NOTE_CHARACTERS]


def pack_outcome(outcome: Outcome) -> bytes:
    """Returns the outcome as the record stores it: a serialized `Outcome` message."""
    return outcome_to_wire(outcome).SerializeToString()


def unpack_outcome(packed: bytes) -> Outcome:
    return outcome_to_domain(tool_pb2.Outcome.FromString(packed))
