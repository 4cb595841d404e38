"""Tools, calls and outcomes, as the rules see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

USUAL_OUTPUT_BYTES: Final = 64 * 1024
"""So much of its output a tool may show, unless it says otherwise."""


class ToolSourceKind(StrEnum):
    """What has tools."""

    BUILT_IN = "BUILT_IN"
    MCP = "MCP"
    PROVIDER = "PROVIDER"
    HTTP = "HTTP"


class EffectClass(StrEnum):
    """What may be done with a call whose runner died before its outcome was known."""

    PURE = "PURE"  # no effect outside: run again
    IDEMPOTENT = "IDEMPOTENT"  # running it again comes to the same: run again
    KEYED = "KEYED"  # the outside honours the idempotency key: run again with the same key
    UNSAFE = "UNSAFE"  # must not happen twice: in doubt, never run again by itself

    @property
    def may_run_again(self) -> bool:
        return self is not EffectClass.UNSAFE


class CallState(StrEnum):
    """Where a call stands at the tool service. The values are those of its database."""

    ACCEPTED = "ACCEPTED"  # recorded; left by STARTED or NOT_RUN
    STARTED = "STARTED"  # the effect may have begun; left by FINISHED, IN_DOUBT, or ACCEPTED (run again)
    FINISHED = "FINISHED"  # it has an outcome
    NOT_RUN = "NOT_RUN"  # closed before it began
    IN_DOUBT = "IN_DOUBT"  # nobody knows; left by FINISHED (a late outcome, or a person's word)


class OutcomeStatus(StrEnum):
    """How a call ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    NOT_ALLOWED = "NOT_ALLOWED"
    NOT_RUN = "NOT_RUN"
    IN_DOUBT = "IN_DOUBT"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool an agent may call. `input_schema_json`: a JSON schema of an object."""

    name: str
    description: str
    input_schema_json: str
    effect_class: EffectClass
    timeout_seconds: float = 30.0
    output_limit_bytes: int = USUAL_OUTPUT_BYTES


@dataclass(frozen=True, slots=True)
class ProgramUsage:
    """What a program in the sandbox used, all its processes together; None where no cgroup counts it."""

    wall_seconds: float
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to. `content` is what the model reads; `output_path`: the workspace's file with all of it."""

    status: OutcomeStatus
    content: str
    truncated: bool = False
    detail: str = ""
    duration_seconds: float = 0.0
    call_attempt: int = 1
    output_path: str = ""
    usage: ProgramUsage | None = None

    @property
    def is_error(self) -> bool:
        return self.status is not OutcomeStatus.SUCCEEDED


class CallStatus(NamedTuple):
    """How a call stands at the tool service. `outcome`: there when it is FINISHED; `call_attempt` 0: it never came."""

    state: CallState
    outcome: Outcome | None = None
    call_attempt: int = 0


CallStatuses = Mapping[str, CallStatus]
"""How the calls of a task stand, by call_id."""

NOT_RUN = Outcome(OutcomeStatus.NOT_RUN, "This call was not run: the task was ended first.")
IN_DOUBT = Outcome(
    OutcomeStatus.IN_DOUBT,
    "It is not known whether this call happened: what ran it died. It must not simply be repeated; "
    "find out first whether its effect is there.",
)


def call_id(step: int, index: int) -> str:
    """The call's name in its task. Providers' own ids may repeat, this one does not."""
    return f"{step}.{index}"
