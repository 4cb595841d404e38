"""The dialects of the Chat Completions API: what servers demand that others refuse or ignore.

A row is chosen by the host of the endpoint, else by the name of the model, because gateways (LiteLLM, a company's own)
pass requests on to any of these servers; an endpoint may also name its row. A server without a row gets the last one:
vLLM, Ollama, llama.cpp and gateways. tests/conformance/dialects has a recorded conversation for each.

Sources: api-docs.deepseek.com/guides/thinking_mode, platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model,
ai.google.dev/gemini-api/docs/thought-signatures, platform.openai.com/docs/guides/reasoning,
docs.mistral.ai/capabilities/reasoning, openrouter.ai/docs/use-cases/reasoning-tokens,
console.groq.com/docs/api-reference, docs.litellm.ai/docs/reasoning_content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tenure.domain.model_parameters import ANY_TOOL, AUTO, NO_TOOL, Effort, ModelParameters

NEW_LIMIT: Final = "max_completion_tokens"
OLD_LIMIT: Final = "max_tokens"
KEPT_OF_CALLS: Final = ("extra_content", "provider_specific_fields")
"""The members of a call that some servers want back: the signatures of Gemini, also behind LiteLLM."""

Members = dict[str, Any]


def _named_effort(*efforts: Effort, **renamed: str) -> Mapping[Effort, Members]:
    """Returns the members for each effort that a server knows by the name `reasoning_effort`."""
    named = {effort: effort.value.lower() for effort in efforts} | {Effort(name): to for name, to in renamed.items()}
    return {effort: {"reasoning_effort": name} for effort, name in named.items()}


_EFFORTS: Final = _named_effort(*Effort)
_THINKS_NOT: Final[Mapping[Effort, Members]] = {Effort.NONE: {"thinking": {"type": "disabled"}}}


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """One row. `hosts`: the ends of host names. `models`: a pattern of model names at other hosts.

    `limit_name`: the member for the limit of output. `thoughts`: the member in which the server wants its thoughts
    back; "": they are not kept. `kept`: other members of an answer that go back as they came. `returns_calls_whole`:
    so do the members of calls in KEPT_OF_CALLS. `efforts`: the members for each effort. `thinking`: returns the members
    for a number of tokens to think; None: the server takes none. `seed`: the member for a seed; "": it takes none.
    `forced`: the value of tool_choice that forces a call.
    """

    name: str
    hosts: tuple[str, ...] = ()
    models: str = r"(?!)"
    limit_name: str = OLD_LIMIT
    thoughts: str = ""
    kept: tuple[str, ...] = ()
    returns_calls_whole: bool = False
    efforts: Mapping[Effort, Members] = field(default_factory=lambda: _EFFORTS)
    thinking: Callable[[int], Members] | None = None
    seed: str = "seed"
    forced: str = "required"

    def members(self, parameters: ModelParameters) -> Members:
        """Returns the members of the body for the parameters. Raises ValueError for one that the server lacks."""
        members: Members = {}
        for name in ("temperature", "top_p"):
            if (value := getattr(parameters, name)) is not None:
                members[name] = value
        if parameters.seed is not None:
            if not self.seed:
                raise ValueError(self._lacks("seed"))
            members[self.seed] = parameters.seed
        if parameters.effort is not None:
            if parameters.effort not in self.efforts:
                known = ", ".join(self.efforts) or "none of them"
                raise ValueError(self._lacks(f"effort {parameters.effort}", f"it knows {known}"))
            members |= self.efforts[parameters.effort]
        if parameters.thinking_tokens:
            if self.thinking is None:
                raise ValueError(self._lacks("thinking_tokens", "set an effort instead"))
            members |= self.thinking(parameters.thinking_tokens)
        if parameters.tool_choice:
            members["tool_choice"] = self._tool_choice(parameters.tool_choice)
        return members | parameters.extra_body

    def _tool_choice(self, choice: str) -> Any:
        if choice in {AUTO, NO_TOOL}:
            return choice
        return self.forced if choice == ANY_TOOL else {"type": "function", "function": {"name": choice}}

    def _lacks(self, what: str, instead: str = "leave it out") -> str:
        return f"the API of {self.name} does not have the parameter {what}: {instead}"


_OPENAI_EFFORTS: Final = _named_effort(
    Effort.NONE, Effort.MINIMAL, Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH
)
OTHER: Final = ChatDialect("other", kept=("thinking_blocks", "reasoning_details"), returns_calls_whole=True)
"""A gateway or a server of one's own. What it sends of these members it takes back, too."""
DIALECTS: Final = (
    # OpenAI's reasoning models refuse the old name of the limit, wherever they are; older servers ignore the new one
    ChatDialect("openai", (".openai.com",), limit_name=NEW_LIMIT, efforts=_OPENAI_EFFORTS),
    ChatDialect("azure", (".azure.com",), limit_name=NEW_LIMIT, efforts=_OPENAI_EFFORTS),
    ChatDialect("openai-models", models=r"(.*/)?(o[1-9]|gpt-5)", limit_name=NEW_LIMIT, efforts=_OPENAI_EFFORTS),
    # these refuse members that they do not know, whatever the model
    ChatDialect(
        "groq",
        (".groq.com",),
        limit_name=NEW_LIMIT,
        efforts=_named_effort(Effort.NONE, Effort.LOW, Effort.MEDIUM, Effort.HIGH),
    ),
    ChatDialect(
        "cerebras",
        (".cerebras.ai",),
        limit_name=NEW_LIMIT,
        efforts=_named_effort(Effort.NONE, Effort.LOW, Effort.MEDIUM, Effort.HIGH),
    ),
    ChatDialect(
        "mistral", (".mistral.ai",), efforts=_named_effort(Effort.NONE, Effort.HIGH), seed="random_seed", forced="any"
    ),
    # it counts its reasoning tokens in the total only: usage_of in chat_stream.py
    ChatDialect(
        "xai", (".x.ai",), efforts=_named_effort(Effort.NONE, Effort.LOW, Effort.MEDIUM, Effort.HIGH, Effort.XHIGH)
    ),
    # its reason to stop is "eos": _STOP_REASONS in chat_stream.py
    ChatDialect(
        "together", (".together.xyz", ".together.ai"), efforts=_named_effort(Effort.LOW, Effort.MEDIUM, Effort.HIGH)
    ),
    # it passes on to models whose thoughts must come back, in one form for all of them
    ChatDialect(
        "openrouter",
        (".openrouter.ai",),
        kept=("reasoning_details",),
        efforts={effort: {"reasoning": {"effort": effort.value.lower()}} for effort in Effort},
        thinking=lambda tokens: {"reasoning": {"max_tokens": tokens}},
    ),
    # refused without the thoughts of the same turn: "The reasoning_content in the thinking mode must be passed back"
    ChatDialect(
        "deepseek",
        (".deepseek.com",),
        r"(.*[/.])?deepseek",
        thoughts="reasoning_content",
        efforts={
            **_THINKS_NOT,
            **_named_effort(Effort.LOW, Effort.HIGH, Effort.MAX, MINIMAL="low", MEDIUM="high", XHIGH="high"),
        },
        seed="",
    ),
    ChatDialect(
        "moonshot",
        (".moonshot.ai", ".moonshot.cn"),
        r"(.*/)?kimi",
        thoughts="reasoning_content",
        efforts=_THINKS_NOT,
        seed="",
    ),
    # refused without the signature of a call, in extra_content.google.thought_signature
    ChatDialect(
        "gemini",
        (".googleapis.com",),
        r"(.*/)?gemini",
        kept=("extra_content",),
        returns_calls_whole=True,
        efforts=_named_effort(Effort.NONE, Effort.MINIMAL, Effort.LOW, Effort.MEDIUM, Effort.HIGH),
        thinking=lambda tokens: {"extra_body": {"google": {"thinking_config": {"thinking_budget": tokens}}}},
    ),
    OTHER,
)
NAMES: Final = tuple(dialect.name for dialect in DIALECTS)


def dialect_of(host: str, model: str, name: str = "") -> ChatDialect:
    """Returns the row for a model at a host. `name`: the one that the endpoint names."""
    for dialect in DIALECTS:
        if name == dialect.name if name else dialect.hosts and f".{host}".endswith(dialect.hosts):
            return dialect
    return next((dialect for dialect in DIALECTS if re.match(dialect.models, model, re.IGNORECASE)), OTHER)
