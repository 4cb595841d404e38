"""What a task tells the provider beside the conversation: temperature, effort, choice of tools and the like.

This module has what is known from the task and the name of its model. Each provider maps the parameters to its own
members (tenure/model_providers), and refuses those that it does not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tenure.domain.models import ANTHROPIC, vendor_of

AUTO: Final = "auto"
NO_TOOL: Final = "none"
ANY_TOOL: Final = "any"
MIN_THINKING_TOKENS: Final = 1024
_FIRST_STEP: Final = 1

EXTRA_MEMBERS: Final = frozenset(
    {
        *("top_k", "top_a", "min_p", "typical_p", "stop", "stop_sequences", "random_seed", "logit_bias"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "min_tokens"),
        *("thinking", "reasoning", "reasoning_effort", "output_config", "chat_template_kwargs", "prompt_mode"),
        *("response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs"),
        *("parallel_tool_calls", "verbosity", "safe_prompt", "user"),
    }
)
"""The members of a body that a submit may set. Any other might name another model, server, tool or price."""


class Effort(StrEnum):
    """How much a model thinks before it answers."""

    NONE = "NONE"
    MINIMAL = "MINIMAL"
    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    XHIGH = "XHIGH"
    MAX = "MAX"


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """The parameters of a task's model calls. None, 0 and "": the provider's own choice.

    `tool_choice`: auto, none, any or the name of a tool. `extra_body_json`: a JSON object of further members.
    """

    temperature: float | None = None
    top_p: float | None = None
    effort: Effort | None = None
    thinking_tokens: int = 0
    tool_choice: str = ""
    seed: int | None = None
    extra_body_json: str = ""

    def of_step(self, step: int) -> ModelParameters:
        """Returns the parameters of the call of a step. Only the first one must call a tool: else the agent never
        ends.
        """
        is_over = step > _FIRST_STEP and self.forces_tool
        return replace(self, tool_choice="") if is_over else self

    @property
    def forces_tool(self) -> bool:
        """Whether the answer must call a tool."""
        return self.tool_choice not in {"", AUTO, NO_TOOL}

    @property
    def thinks(self) -> bool:
        """Whether the model is asked to think."""
        return bool(self.thinking_tokens) or self.effort not in {None, Effort.NONE}

    @property
    def extra_body(self) -> dict[str, Any]:
        """The further members of the body."""
        members: dict[str, Any] = json.loads(self.extra_body_json) if self.extra_body_json else {}
        return members


NO_PARAMETERS: Final = ModelParameters()


def problems_of(parameters: ModelParameters) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the parameters for any model: the field and a sentence."""
    if parameters.thinking_tokens and parameters.thinking_tokens < MIN_THINKING_TOKENS:
        yield "thinking_tokens", f"must be {MIN_THINKING_TOKENS} or more"
    if parameters.thinking_tokens and parameters.effort is not None:
        yield "thinking_tokens", "cannot be set together with effort: a model takes one of them"
    try:
        extra = json.loads(parameters.extra_body_json or "{}")
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        yield "extra_body_json", "must be a JSON object"
    elif refused := sorted(extra.keys() - EXTRA_MEMBERS):
        known = ", ".join(sorted(EXTRA_MEMBERS))
        problem = f"must not have {refused[0][:64]!r}; an operator can set it for an endpoint. A task may set {known}"
        yield "extra_body_json", problem


def problems_with(model: str, parameters: ModelParameters) -> Iterator[tuple[str, str]]:
    """Yields what the provider of a model cannot do, as far as the name of the model says it."""
    vendor, _ = vendor_of(model)
    if not model or vendor != ANTHROPIC:
        return
    if parameters.seed is not None:
        yield "seed", f"is not known to Anthropic, whose model {model} is: leave it out"
    if parameters.temperature is not None and parameters.temperature > 1:
        yield "temperature", f"must be 0 to 1 for {model}, a model of Anthropic"
    if parameters.thinks and parameters.temperature not in {None, 1.0}:
        yield "temperature", f"cannot be set while {model} thinks: leave out effort and thinking_tokens, or this"
    if parameters.thinking_tokens and parameters.forces_tool:
        yield "tool_choice", f"cannot force a tool while {model} thinks: leave out thinking_tokens, or use auto"
