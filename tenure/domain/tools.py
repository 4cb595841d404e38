"""Defines tools and their names, the states of a tool call, outcomes, and plans of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from tenure.domain.argument_mapping import problems_of_mapping
from tenure.domain.effect_keys import EffectKey
from tenure.domain.images import Image
from tenure.domain.json_pointers import JsonValue
from tenure.domain.outputs import TaskOutput
from tenure.domain.texts import MAX_KEPT_BYTES

USUAL_OUTPUT_BYTES: Final = 64 * 1024
"""The default output limit of a tool: the model reads at most this much of the output."""
CUT_MARKER: Final = "\n[cut here: the output was longer than {limit} bytes]"
MAX_UNKNOWN: Final = 10
MAX_NEAREST: Final = 3


class ToolSourceKind(StrEnum):
    """The kind of a tool source."""

    BUILT_IN = "BUILT_IN"
    MCP = "MCP"
    PROVIDER = "PROVIDER"
    HTTP = "HTTP"


class EffectClass(StrEnum):
    """Whether a call may run again when its runner died before its outcome was known."""

    PURE = "PURE"  # no effect outside: run again
    IDEMPOTENT = "IDEMPOTENT"  # a second run has no further effect: run again
    KEYED = "KEYED"  # the outside system honours the idempotency key: run again with the same key
    UNSAFE = "UNSAFE"  # must not happen twice: in doubt, never run again without a decision

    @property
    def may_run_again(self) -> bool:
        return self is not EffectClass.UNSAFE


class CallState(StrEnum):
    """The state of a call record. The tool service's database stores the same values."""

    ACCEPTED = "ACCEPTED"  # recorded; left by STARTED or NOT_RUN
    STARTED = "STARTED"  # the effect may have begun; left by FINISHED, IN_DOUBT, or ACCEPTED (run again)
    FINISHED = "FINISHED"  # the call has an outcome
    NOT_RUN = "NOT_RUN"  # the record was closed before the call began
    IN_DOUBT = "IN_DOUBT"  # the effect is unknown; left by FINISHED (a late outcome, or a person's resolution)


class OutcomeStatus(StrEnum):
    """The status of an outcome."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    NOT_ALLOWED = "NOT_ALLOWED"
    NOT_RUN = "NOT_RUN"
    IN_DOUBT = "IN_DOUBT"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Compensation:
    """The call that undoes the effect of a call. `arguments_json`: a mapping (tenure/domain/argument_mapping.py).

    `own_tool`: the tool is an own tool of the task's worker, not one of the tool service.
    """

    tool: str
    arguments_json: str
    own_tool: bool = False

    @classmethod
    def declared(cls, tool: str, arguments: Mapping[str, JsonValue], *, own_tool: bool = False) -> Compensation:
        """Returns the declaration of a config file or a program. Raises ValueError for one that no tool can have."""
        if not OWN_TOOL_NAME.match(tool):
            raise ValueError(f"tool: {tool!r} must be the name of a tool: 1 to 64 characters of [a-zA-Z0-9_-]")
        if problems := list(problems_of_mapping(arguments, ("arguments", "outcome"))):
            raise ValueError("; ".join(f"arguments: {problem}" for problem in problems))
        return cls(tool, json.dumps(dict(arguments), ensure_ascii=False, separators=(",", ":")), own_tool)


@dataclass(frozen=True, slots=True)
class CheckWith:
    """A PURE tool that says whether a call of another tool happened. `arguments_json`: a mapping, as a JSON object."""

    tool: str
    arguments_json: str = "{}"


@dataclass(frozen=True, slots=True)
class CallSettlement:
    """How calls of unknown end are settled (tenure/domain/settlement.py). `for_seconds` None: as is usual."""

    for_seconds: float | None = None
    check_with: CheckWith | None = None


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that an agent may call. `input_schema_json`: a JSON Schema of an object. `effect_key`: what makes two of
    its calls the same effect; None: each call is an effect of its own. `compensation` None: its effects cannot be
    undone.
    """

    name: str
    description: str
    input_schema_json: str
    effect_class: EffectClass
    timeout_seconds: float = 30.0
    output_limit_bytes: int = USUAL_OUTPUT_BYTES
    effect_key: EffectKey | None = None
    compensation: Compensation | None = None
    settlement: CallSettlement | None = None


@dataclass(frozen=True, slots=True)
class ProgramUsage:
    """The resources that a program in the sandbox used, summed over its processes. None: no cgroup measured it."""

    wall_seconds: float
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call. The model reads `content` and then `note`, which the worker adds: that a person changed the
    arguments, for example. `output_path` is the workspace's file with the whole output.

    `images`: those that the tool returned, which the model sees if it can; `content` names their files. `no_effect`:
    there is proof that this attempt had no effect, such as a connection that was never made, or another call that had
    made the effect.
    """

    status: OutcomeStatus
    content: str
    truncated: bool = False
    detail: str = ""
    duration_seconds: float = 0.0
    call_attempt: int = 1
    output_path: str = ""
    usage: ProgramUsage | None = None
    output: TaskOutput | None = None
    images: tuple[Image, ...] = ()
    note: str = ""
    no_effect: bool = False

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"{self.content}\n\n{self.note}".lstrip("\n") if self.note else self.content

    @property
    def is_error(self) -> bool:
        return self.status is not OutcomeStatus.SUCCEEDED


class CallStatus(NamedTuple):
    """The state of a call at the tool service.

    `outcome`: set when the state is FINISHED, and of a call in doubt that was not made. `call_attempt` 0: the call
    never reached the tool service.
    """

    state: CallState
    outcome: Outcome | None = None
    call_attempt: int = 0


CallStatuses = Mapping[str, CallStatus]
"""The statuses of a task's calls, by call id."""

UNUSABLE_CALL: Final = "UNUSABLE_CALL"
"""The detail of the outcome of a call that was never made, because the model's answer has no arguments for it."""
NOT_RUN = Outcome(OutcomeStatus.NOT_RUN, "This call was not run: the task was ended first.")
IN_DOUBT = Outcome(
    OutcomeStatus.IN_DOUBT,
    "It is not known whether this call had its effect: the process that ran it died. Tenure keeps the call in doubt "
    "until its end is known: do not make it again.",
)
UNRECORDED = Outcome(
    OutcomeStatus.FAILED,
    "The tool service has an outcome of this call, but the ledger refused it. It is not known here whether the call "
    "had its effect.",
    detail="UNRECORDED",
)
"""The outcome of a call whose own outcome cannot be written: without one, its task could not end."""


def call_id(step: int, index: int) -> str:
    """Returns the call id, such as `6.0`. It is unique in a task, unlike the ids that model providers give."""
    return f"{step}.{index}"


# Names that callers give, and names of tools.


class UnknownTool(NamedTuple):
    """A name that no tool has, and the most similar names of tools."""

    name: str
    nearest: tuple[str, ...]


def unknown_tools(names: Iterable[str], known: Collection[str]) -> list[UnknownTool]:
    """Returns the first `MAX_UNKNOWN` names that are not known: each is compared with all known names."""
    unknown = dict.fromkeys(name for name in names if name not in known)
    first = islice(unknown, MAX_UNKNOWN)
    return [UnknownTool(name, tuple(get_close_matches(name, known, MAX_NEAREST))) for name in first]


def unknown_tool_text(name: str, nearest: Sequence[str]) -> str:
    """Returns a clause for an error message."""
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    return f"there is no tool {name!r}{hint}"


# Truncation: the model reads at most a tool's output limit; the ledger has the same text.


def encode(content: str) -> bytes:
    """Returns the text as UTF-8. Unpaired surrogates, which no proto message can carry, become `?`. NUL is kept."""
    return content.encode("utf-8", errors="replace")


def cut(content: str, limit_bytes: int) -> tuple[str, bool]:
    """Returns the text, cut to `limit_bytes` of UTF-8 including the marker, and whether it was cut."""
    encoded = encode(content)
    if len(encoded) <= limit_bytes:
        return encoded.decode(), False
    marker = CUT_MARKER.format(limit=limit_bytes)
    kept = encoded[: max(0, limit_bytes - len(marker))]
    return kept.decode("utf-8", errors="ignore") + marker, True


def bounded(outcome: Outcome, limit_bytes: int) -> Outcome:
    """Returns the outcome with its content cut to the tool's limit. A person's resolution may be longer than that."""
    content, truncated = cut(outcome.content, limit_bytes)
    return replace(outcome, content=content, truncated=outcome.truncated or truncated)


# The rules of own tools: tools that a worker runs itself, in its own process, behind the tool service's fence.

OWN_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
MAX_OWN_DESCRIPTION: Final = 4096
MAX_OWN_SCHEMA: Final = 64 * 1024
MAX_OWN_OUTPUT_BYTES: Final = 512 * 1024
NAME_TAKEN: Final = "TOOL_NAME_TAKEN"
"""The detail of a call of an own tool whose name the tool service has given to a tool or a source."""

RAN_TO_ITS_END: Final = "The call itself ran to its end: do not make it again for its effect."
"""What the model reads of a call that had its effect, and whose result cannot be recorded."""

TOO_LARGE: Final = "OUTPUT_TOO_LARGE"
OWN_STATUSES: Final = frozenset(
    {
        OutcomeStatus.SUCCEEDED,
        OutcomeStatus.FAILED,
        OutcomeStatus.TIMED_OUT,
        OutcomeStatus.IN_DOUBT,
        OutcomeStatus.NOT_RUN,
    }
)
"""What a worker may report. TIMED_OUT stopped the run; IN_DOUBT: the tool does not know its effect; NOT_RUN: the run
did not begin and never will.
"""


def within_limit(outcome: Outcome, definition: ToolDefinition) -> Outcome:
    """Returns the outcome, or a failure in its place if its content is too large.

    The content is never truncated: it may be JSON, which the caller parses.
    """
    size = len(encode(outcome.content))
    if size <= definition.output_limit_bytes:
        return outcome
    most = MAX_KEPT_BYTES if size > MAX_KEPT_BYTES else definition.output_limit_bytes  # less is kept as a file
    message = (
        f"{definition.name} returned {size} bytes, and may return {most}: its result was not "
        f"recorded. {RAN_TO_ITS_END} Return less, or store the result elsewhere and return where."
    )
    return replace(outcome, status=OutcomeStatus.FAILED, content=message, detail=TOO_LARGE)


@dataclass(frozen=True, slots=True)
class PlannedCalls:
    """Later calls that a person approves at once: see tenure/domain/call_plans.py.

    `same`: paths at which a call has the values `same_values`, JSON texts. Times: Unix time, whole seconds.
    `lasts_seconds`: of a plan that is not approved yet and has no `end_time`.
    The ledger sets `plan_id`, `same_values`, `approved_by` and `approve_time`.
    """

    plan_id: str = ""
    tool: str = ""
    count: int = 0
    when: str = ""
    same: tuple[str, ...] = ()
    sum_of: str = ""
    limit: str = ""
    end_time: float = 0.0
    same_values: tuple[str, ...] = ()
    approved_by: str = ""
    approve_time: float = 0.0
    lasts_seconds: float = 0.0

    def describe(self) -> str:
        """Returns the plan for people: `up to 5 calls of refund, args.customer "7", args.amount at most 200 in all`."""
        parts = [f"up to {self.count:,} calls of {self.tool}"]
        parts += [f"{path} {value}" for path, value in zip(self.same, self.same_values, strict=False)]
        parts += [self.when] if self.when else []
        parts += [f"{self.sum_of} at most {self.limit} in all"] if self.limit else []
        return ", ".join(parts)
