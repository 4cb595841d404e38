"""What is known of an endpoint and its models: the settings of its operator, and what its refusals taught.

A server of one's own often has a smaller window than the model's maker states, and says so only when it refuses a
request. The refusal is free: the request is sent again at once within the limit, and every later one keeps to it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tenure.domain.outbound import is_loopback_host

if TYPE_CHECKING:
    from tenure.model_providers.client import ModelRequest

MIN_OUTPUT_TOKENS: Final = 256
"""The shortest output that is asked for: the server knows better whether it fits than an upper bound of the input."""
PINGED_SILENCE_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 300.0
SILENT_FOR_LONG: Final = (
    "it sent nothing for {seconds:g} s. The next call waits twice as long; set silence_seconds of the endpoint, or "
    "TENURE_OPENAI_SILENCE_SECONDS, for a model that thinks longer"
)
SILENT_WITHOUT_PINGS: Final = (
    "it sent nothing for {seconds:g} s, not even a ping; set silence_seconds of the endpoint, or "
    "TENURE_WORKER_MODEL_SILENCE_SECONDS, for a server that sends no pings"
)
_MAX_LIMIT: Final = 100_000_000
_MAX_MODELS: Final = 1000
"""Tasks name the models, so that what is known of them has a bound."""
_REFUSED: Final = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What an operator states of an endpoint, or of one model there. 0 and empty: nothing.

    `silence_seconds`: the longest wait for the next bytes. `dialect`: the row in dialects.py.
    """

    context_window_tokens: int = 0
    max_output_tokens: int = 0
    silence_seconds: float = 0.0
    dialect: str = ""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)


NO_OPTIONS: Final = ModelOptions()
OptionsOf = Callable[[str], ModelOptions]


def no_options(_model: str) -> ModelOptions:
    return NO_OPTIONS


class ModelLimits(NamedTuple):
    """The limits of a model in tokens; 0: unknown. `input_tokens`: what the server counted of the refused request."""

    window_tokens: int = 0
    output_tokens: int = 0
    input_tokens: int = 0


NO_LIMITS: Final = ModelLimits()


class KnownEndpoint:
    """One endpoint. `options_of`: the operator's options of a model. `is_pinged`: an answer that is under way gives a
    sign of life, so that a silence is a broken connection.
    """

    def __init__(
        self,
        options_of: OptionsOf = no_options,
        *,
        host: str = "",
        is_pinged: bool = False,
        silence_seconds: float = 0.0,
    ) -> None:
        self.options_of = options_of
        self._is_pinged = is_pinged
        is_local = is_local_host(host)
        usual = 0.0 if is_local else PINGED_SILENCE_SECONDS if is_pinged else SILENCE_SECONDS
        self._silence_seconds = silence_seconds or usual
        self._learned: OrderedDict[str, ModelLimits] = OrderedDict()
        self._patience: OrderedDict[str, float] = OrderedDict()

    def limits(self, model: str) -> ModelLimits:
        """Returns the limits of a model: the smaller ones of the settings and the refusals."""
        options, learned = self.options_of(model), self._learned.get(model, NO_LIMITS)
        return ModelLimits(
            _smaller(options.context_window_tokens, learned.window_tokens),
            _smaller(options.max_output_tokens, learned.output_tokens),
        )

    def fitted(self, request: ModelRequest) -> ModelRequest:
        """Returns the request with an output that fits the limits of its model."""
        return replace(request, max_output_tokens=fitted_output(request, self.limits(request.model)))

    def learn(self, request: ModelRequest, status: int, message: str) -> ModelRequest | None:
        """Takes a refusal. Returns the request to send instead; None: the refusal says nothing that helps."""
        stated = stated_limits(message) if status in _REFUSED else NO_LIMITS
        known = self.limits(request.model)
        new = ModelLimits(
            _smaller(stated.window_tokens, known.window_tokens), _smaller(stated.output_tokens, known.output_tokens)
        )
        if new != known:
            _put(self._learned, request.model, new)
        if 0 < new.window_tokens <= stated.input_tokens:
            return None
        counted = replace(request, input_tokens=stated.input_tokens or request.input_tokens)
        fitted = replace(request, max_output_tokens=fitted_output(counted, new))
        return fitted if fitted.max_output_tokens < request.max_output_tokens else None

    def silence_seconds(self, model: str, timeout_seconds: float) -> float | None:
        """Returns the longest wait for the next bytes of an answer; None: only the call's own timeout ends it."""
        seconds = self.options_of(model).silence_seconds or self._silence_seconds
        seconds = max(seconds, self._patience.get(model, 0.0)) if seconds else 0.0
        return seconds if 0 < seconds < timeout_seconds else None

    def met_silence(self, model: str, seconds: float) -> str:
        """Takes a silence that ended a call. Returns a sentence for its failure.

        After that of a server that does not say that it thinks, the next call waits twice as long, since the provider
        bills the same silence again.
        """
        if self._is_pinged:
            return SILENT_WITHOUT_PINGS.format(seconds=seconds)
        _put(self._patience, model, 2 * seconds)
        return SILENT_FOR_LONG.format(seconds=seconds)


def fitted_output(request: ModelRequest, limits: ModelLimits) -> int:
    """Returns the most output of a request within the limits. An input that is not known has half of the window."""
    most = request.max_output_tokens
    if limits.output_tokens:
        most = min(most, limits.output_tokens)
    if limits.window_tokens:
        room = limits.window_tokens - (request.input_tokens or limits.window_tokens // 2)
        most = min(most, max(room, MIN_OUTPUT_TOKENS))
    return most


_NUMBER: Final = r"(\d[\d,_]*)"
_WINDOWS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:maximum context length|max_model_len|maximum model length|context window)\D{{0,40}}{_NUMBER}",
        rf"available context size \({_NUMBER}",
        rf"context limit: \d+ \+ \d+ > {_NUMBER}",
        rf"`?max_new_tokens`? must be <= {_NUMBER}",
    )
)
_OUTPUTS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"supports at most {_NUMBER} completion tokens",
        rf"max_tokens: \d+ > {_NUMBER}, which is the maximum",
        rf"max_(?:completion_)?tokens`? must be less than or equal to `?{_NUMBER}",
        rf"valid range of max_(?:completion_)?tokens is \[\d+, ?{_NUMBER}\]",
        rf"exceeds the model limit of {_NUMBER}",
    )
)
_INPUTS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_NUMBER} (?:in the messages|input tokens|tokens from the input|of text input|`inputs` tokens)",
        rf"context limit: {_NUMBER} \+",
    )
)
"""What servers say of the limits that a request exceeds: OpenAI, vLLM, SGLang, llama.cpp, OpenRouter, Anthropic,
Together, Groq, DeepSeek, Bedrock.
"""


def stated_limits(message: str) -> ModelLimits:
    """Returns the limits that a refusal states."""
    return ModelLimits(*(_first(patterns, message) for patterns in (_WINDOWS, _OUTPUTS, _INPUTS)))


def _first(patterns: tuple[re.Pattern[str], ...], message: str) -> int:
    for pattern in patterns:
        if match := pattern.search(message[:2000]):
            number = int(match[1].replace(",", "").replace("_", ""))
            return number if number <= _MAX_LIMIT else 0
    return 0


def is_local_host(host: str) -> bool:
    """Whether a host is this machine or one of its own network: by its address, or by a name that has no domain."""
    try:
        return ip_address(host).is_private
    except ValueError:
        return bool(host) and (
            is_loopback_host(host) or "." not in host or host.endswith((".local", ".internal", ".lan"))
        )


def _smaller(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def _put(known: OrderedDict[str, Any], model: str, value: Any) -> None:
    known[model] = value
    known.move_to_end(model)
    if len(known) > _MAX_MODELS:
        known.popitem(last=False)
