"""Defines own tools: coroutines that the worker runs itself, each call behind the tool service's fence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tenure.domain.argument_mapping import problems_of_names
from tenure.domain.effect_keys import EffectKey
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.domain.tool_arguments import well_formed
from tenure.domain.tools import (
    MAX_OWN_DESCRIPTION,
    MAX_OWN_OUTPUT_BYTES,
    MAX_OWN_SCHEMA,
    OWN_TOOL_NAME,
    USUAL_OUTPUT_BYTES,
    Compensation,
    EffectClass,
    ToolDefinition,
)

MIN_OUTPUT_BYTES: Final = 1024
DEFAULT_OUTPUT_BYTES: Final = 256 * 1024
DEFAULT_TIMEOUT_SECONDS: Final = 300.0


class EffectUnknown(Exception):  # noqa: N818  reads well in `raise EffectUnknown("…")`
    """Raise this from an own tool that sent something and lost the answer: the effect may or may not have happened.

    The call of an UNSAFE tool is in doubt then, until a person resolves it. A call of another class has failed.
    """


class ToolError(Exception):
    """Raise this from an own tool that failed: its text is the content of the FAILED outcome, word for word.

    `detail`: of the outcome, for programs: in capitals.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ForModel(str):
    """Content of an own tool that only a model reads. More than `model_limit_bytes` is shortened and kept as a file."""

    __slots__ = ()


class OwnToolContext(Protocol):
    """The context of a call, which an own tool receives with it."""

    @property
    def task_id(self) -> str:
        """The id of the task."""

    @property
    def call_id(self) -> str:
        """The call, "<step>.<index>", unique in its task."""

    @property
    def call_attempt(self) -> int:
        """The number of this run of the call; from 1."""

    @property
    def idempotency_key(self) -> str:
        """`<task_id>/<call_id>`, or that of the call's effect key; the same for every run of the call. Pass it on to
        what honours such keys.
        """

    @property
    def epoch(self) -> int:
        """The epoch of the claim. It only grows: a backend that compares it can refuse a worker that lost the task."""

    def emit(self, text: str) -> None:
        """Reports that the tool makes progress. The text is not recorded."""


def checked_limits(limits: Mapping[str, int]) -> dict[str, int]:
    """Returns limits of outputs in bytes, by the names of tools. Raises ValueError for one that no tool can have."""
    for tool, limit in limits.items():
        _check_limit(limit, f"the output limit of {tool}")
    return dict(limits)


def _check_limit(limit: int, which: str) -> None:
    if not MIN_OUTPUT_BYTES <= limit <= MAX_OWN_OUTPUT_BYTES:
        raise ValueError(f"{which} must be {MIN_OUTPUT_BYTES} to {MAX_OWN_OUTPUT_BYTES}")


async def runs_nowhere(_call: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
    """The `run` of a tool that is only shown. Raises RuntimeError."""
    raise RuntimeError("this tool is only shown: a call has a tool of its own")


def compensate_with(tool: str | Any, arguments: Mapping[str, Any]) -> Compensation:
    """Returns the compensation of a tool: the call that undoes the effect of its calls (docs/undo.md).

    tool: an own tool, or a function tool of the same agent, as the object; a tool of the tool service by its name.
    arguments: each a JSON pointer (/arguments/…, /outcome/…) or a value. Raises ValueError for others, and for those
    that the schema of an `OwnTool` does not have; a worker refuses those of function tools at its start.
    """
    if isinstance(tool, str):
        return Compensation.declared(tool, arguments)
    if isinstance(tool, OwnTool) and (problems := "; ".join(problems_of_names(tool.input_schema, arguments.keys()))):
        raise ValueError(f"{tool.name} {problems}")
    name = getattr(tool, "name", None) or getattr(tool, "__name__", "")
    return Compensation.declared(str(name), arguments, own_tool=True)


@dataclass(frozen=True, kw_only=True)
class OwnTool:
    """A tool that the worker runs itself, as a coroutine of its own process.

    `run` gets the context and the arguments, which fit the schema, and returns the content of the outcome. What it
    raises is a FAILED outcome. It is cancelled at the timeout, and when the task leaves the worker. `input_schema`: a
    JSON Schema of an object. `effect`: what happens to a call whose worker is lost. `needs_approval`: each call waits
    for a person. `shown_schema`: what people see as the schema, if `run` checks the arguments itself and `input_schema`
    says little. `model_limit_bytes`: the part of `ForModel` content that the model reads. `effect_key`: which of the
    arguments make two calls the same effect, which then happens once. `compensation`: how an undo takes the effect
    back, made by `compensate_with`.
    Raises ValueError for a definition that the tool service would refuse.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    effect: EffectClass
    run: Callable[[OwnToolContext, Mapping[str, Any]], Awaitable[str]]
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    output_limit_bytes: int = DEFAULT_OUTPUT_BYTES
    model_limit_bytes: int = USUAL_OUTPUT_BYTES
    needs_approval: bool = False
    shown_schema: Mapping[str, Any] | None = None
    effect_key: EffectKey | None = None
    compensation: Compensation | None = None

    def __post_init__(self) -> None:
        if OWN_TOOL_NAME.match(self.name) is None:
            raise ValueError(f"{self.name!r} is not a name of a tool: use 1 to 64 of a-z, A-Z, 0-9, _ and -")
        if len(self.description) > MAX_OWN_DESCRIPTION:
            raise ValueError(f"the description of {self.name} has more than {MAX_OWN_DESCRIPTION} characters")
        if well_formed(self.description) != self.description:
            raise ValueError(f"the description of {self.name} has half of a surrogate pair: use whole characters")
        if len(self.definition.input_schema_json) > MAX_OWN_SCHEMA:
            raise ValueError(f"the input_schema of {self.name} has more than {MAX_OWN_SCHEMA} characters of JSON")
        if not 0 < self.timeout_seconds <= MAX_PHASE_SECONDS:
            raise ValueError(f"the timeout_seconds of {self.name} must be above 0 and at most {MAX_PHASE_SECONDS:g}")
        _check_limit(self.output_limit_bytes, f"the output_limit_bytes of {self.name}")
        _check_limit(self.model_limit_bytes, f"the model_limit_bytes of {self.name}")
        if self.effect_key is not None:
            self.effect_key.check()

    @property
    def shown(self) -> ToolDefinition:
        """The definition in the ledger, for people."""
        if self.shown_schema is None:
            return self.definition
        shown = json.dumps(dict(self.shown_schema), sort_keys=True)
        return self.definition if len(shown) > MAX_OWN_SCHEMA else replace(self.definition, input_schema_json=shown)

    @property
    def definition(self) -> ToolDefinition:
        """The definition that travels with each call."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            input_schema_json=json.dumps(dict(self.input_schema), sort_keys=True),
            effect_class=EffectClass(self.effect),
            timeout_seconds=self.timeout_seconds,
            output_limit_bytes=self.output_limit_bytes,
            effect_key=self.effect_key,
            compensation=self.compensation,
        )
