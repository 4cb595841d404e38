"""Turns the tools that a source describes into tools of this service: prefixed names, the operator's rules, limits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from services.tools.registry import BUILT_IN, SEPARATOR
from tenure.domain.access import TENANT_NAME
from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
from tenure.domain.outbound import is_clear_text, origin_only
from tenure.domain.settlement import LONGEST_SECONDS as LONGEST_SETTLEMENT_SECONDS
from tenure.domain.texts import span_seconds
from tenure.domain.tools import (
    USUAL_OUTPUT_BYTES,
    CallSettlement,
    CheckWith,
    Compensation,
    EffectClass,
    ToolDefinition,
    encode,
)
from tenure.validators.common import MIN_OUTPUT_BYTES
from tenure.validators.rules import TOOL_NAME

# The common parts of the config file's sections. They are not in edges/tools_config.py, which imports the sections.


class Section(BaseModel):
    """The base of the config file's sections: no unknown keys, immutable.

    Validation errors do not quote the content, because it may contain secrets.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, hide_input_in_errors=True)


def require_tls(url: str, *, allow_insecure: bool) -> None:
    """Raises ValueError for a URL to which calls and credentials would travel in clear text, unless that is allowed."""
    if is_clear_text(url) and not allow_insecure:
        raise ValueError(
            f"others could read the calls and the credentials on their way to {origin_only(url)}: use TLS, or set "
            "allow_insecure: true"
        )


def _read_span(value: object) -> object:
    """Returns the seconds of `10m` or `1h30m`; other values as they are."""
    if not isinstance(value, str):
        return value
    seconds = span_seconds(value)
    if seconds is None:
        raise ValueError("write a duration such as 90s, 10m or 1h30m")
    return seconds


Span = Annotated[float, BeforeValidator(_read_span)]
"""A duration of the config file, in seconds: a number, or a text such as `10m`."""

ToolReference = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
"""The name of a tool as agents see it, also of another source."""


class CheckSettings(Section):
    """The tool that says whether a call happened. It must be PURE, which is known only when it is called.

    arguments: its arguments by name; a text that begins with `/` is a JSON pointer (tenure/domain/argument_mapping.py).
    """

    tool: ToolReference
    arguments: Mapping[str, Any] = Field(default_factory=dict, max_length=64)


class SettleSettings(Section):
    """How calls of unknown end are settled (tenure/domain/settlement.py).

    for: how long; 0: nothing is repeated. All kinds of tools have these settings.
    """

    for_seconds: Span | None = Field(None, alias="for", ge=0, le=LONGEST_SETTLEMENT_SECONDS)
    check_with: CheckSettings | None = None

    @property
    def settlement(self) -> CallSettlement:
        """The settings as part of a tool's definition."""
        check = self.check_with
        declared = None if check is None else CheckWith(check.tool, json.dumps(dict(check.arguments)))
        return CallSettlement(self.for_seconds, declared)

    def problem(self, effect_class: EffectClass) -> str:
        """Returns why a tool of this class cannot be settled so, or ""."""
        if effect_class is EffectClass.PURE:
            return "a PURE tool has nothing to settle"
        if effect_class is EffectClass.UNSAFE and self.check_with is None:
            return "an UNSAFE tool is never repeated, so only a check_with can settle its calls"
        return ""


MAX_TOOLS: Final = 256
MAX_DESCRIPTION_CHARACTERS: Final = 16 * 1024
MAX_SCHEMA_CHARACTERS: Final = 128 * 1024
USUAL_TIMEOUT_SECONDS: Final = 30.0
LONGEST_TIMEOUT_SECONDS: Final = 3600.0
LARGEST_OUTPUT_BYTES: Final = 1024 * 1024
_NOTHING: Final[Mapping[str, str]] = {}


def _not_built_in(name: str) -> str:
    if name == BUILT_IN:
        raise ValueError(f"{BUILT_IN} is the name of the built-in tools; choose another name")
    return name


SourceName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](_?[a-zA-Z0-9-]){0,31}$"), AfterValidator(_not_built_in)]
"""The name of a source in the config file. It has no `__`, because that separates it from its tools' names."""


def _printable(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a header's value must be printable ASCII")
    if text != text.strip():
        raise ValueError("a header's value must not begin or end with blanks")
    return value


HeaderValue = Annotated[SecretStr, AfterValidator(_printable)]
"""A value for HTTP headers and gRPC metadata. Client libraries would refuse a bad value only when a call is sent."""


class CompensationSettings(Section):
    """How an effect is undone.

    tool: the name of a tool, as agents see it.
    arguments: its arguments, each as a JSON pointer (/arguments/…, /outcome/…) or as a value.
    """

    tool: str
    arguments: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> CompensationSettings:
        self.compensation  # noqa: B018  raises
        return self

    @property
    def compensation(self) -> Compensation:
        """The declaration as a tool definition has it."""
        return Compensation.declared(self.tool, self.arguments)


TenantName = Annotated[str, Field(pattern=rf"^{TENANT_NAME.pattern}$")]


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _in_seconds(value: object) -> object:
    """Returns a period such as 30d in seconds. Any other value is left to the validation."""
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in _UNITS:
        return int(value[:-1]) * _UNITS[value[-1]]
    return value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class EffectKeySettings(Section):
    """The effect key of a tool (docs/effects.md).

    arguments: JSON pointers into the arguments, such as /order.
    scope: task, tree, conversation, source or tenant.
    period: only of the scope tenant: how long the effect is remembered, such as 30d, 12h, 5m or 90s.
    on_repeat: return, ask or refuse.
    """

    arguments: tuple[str, ...]
    scope: Annotated[EffectScope, BeforeValidator(_upper)]
    period: Annotated[float, BeforeValidator(_in_seconds)] = 0.0
    on_repeat: Annotated[OnRepeat, BeforeValidator(_upper)] = OnRepeat.RETURN

    @model_validator(mode="after")
    def _fits(self) -> EffectKeySettings:
        self.key.check()
        return self

    @property
    def key(self) -> EffectKey:
        """The effect key that it describes."""
        return EffectKey(self.arguments, self.scope, self.period, self.on_repeat)


EffectKeys = dict[str, EffectKeySettings]


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's rules for a source's tools, by the source's own names. `allow` None: all tools."""

    allow: frozenset[str] | None = None
    effects: Mapping[str, EffectClass] = field(default_factory=dict)
    timeout_seconds: float | None = None
    output_limit_bytes: int | None = None
    compensations: Mapping[str, CompensationSettings] = field(default_factory=dict)
    effect_keys: Mapping[str, EffectKeySettings] = field(default_factory=dict)
    settle: Mapping[str, SettleSettings] = field(default_factory=dict)


def offered(
    source: str, described: Iterable[ToolDefinition], rules: Rules, unusable: Mapping[str, str] = _NOTHING
) -> tuple[dict[str, ToolDefinition], list[str]]:
    """Returns the definitions for agents, by the source's own names, and a list of problems.

    The problems are tools that are left out, and names in the rules without a tool. `unusable`: tools that this kind of
    source cannot offer, by their own names, with the reason. The first of two tools with the same name is taken.
    """
    taken: dict[str, ToolDefinition] = {}
    problems: list[str] = []
    seen: Counter[str] = Counter()
    too_many = 0
    for definition in described:
        seen[definition.name] += 1
        if definition.name in taken or (rules.allow is not None and definition.name not in rules.allow):
            continue
        if problem := unusable.get(definition.name) or _problem(source, definition):
            problems.append(f"{definition.name[:100]!r} is left out: {problem}")
        elif len(taken) == MAX_TOOLS:
            too_many += 1
        else:
            taken[definition.name] = _ruled(source, definition, rules)
    if too_many:
        problems.append(
            f"{too_many} tools are left out: a source may have {MAX_TOOLS}; name the tools that you want in `allow`"
        )
    problems += [
        f"{name[:100]!r} is listed {count} times: only the first one is taken"
        for name, count in seen.items()
        if count > 1 and name in taken
    ]
    problems = list(dict.fromkeys(problems))
    problems += [
        f"settle of {name[:100]!r} has no effect: {problem}"
        for name, definition in taken.items()
        if name in rules.settle and (problem := rules.settle[name].problem(definition.effect_class))
    ]
    declared = rules.compensations.keys() | rules.effect_keys.keys() | rules.settle.keys()
    missing = sorted(((rules.allow or frozenset()) | rules.effects.keys() | declared) - seen.keys())
    return taken, problems + [f"{name!r} is named in the config file, but there is no such tool" for name in missing]


def _problem(source: str, definition: ToolDefinition) -> str:
    """Returns why the tool is left out, or "".

    A tool with a too long description is left out, because half a description may say the opposite of the whole.
    """
    name = f"{source}{SEPARATOR}{definition.name}"
    if not TOOL_NAME.match(name) or not definition.name:
        return f"{name[:100]!r} is not a name of 1 to 64 characters of [a-zA-Z0-9_-]"
    if len(definition.description) > MAX_DESCRIPTION_CHARACTERS:
        return f"its description has more than {MAX_DESCRIPTION_CHARACTERS} characters"
    if encode(definition.description).decode() != definition.description:
        return "its description has half of a surrogate pair"
    if len(definition.input_schema_json) > MAX_SCHEMA_CHARACTERS:
        return f"its schema has more than {MAX_SCHEMA_CHARACTERS} characters"
    return ""


def _ruled(source: str, definition: ToolDefinition, rules: Rules) -> ToolDefinition:
    """Returns the definition with the prefixed name and the operator's rules.

    A missing timeout or output limit gets the default; a value beyond the limits becomes the limit. A compensation that
    the source declares itself is dropped: it would name a tool that the source need not know, with its effects.
    """
    declared = rules.compensations.get(definition.name)
    timeout_seconds = rules.timeout_seconds or max(0.0, definition.timeout_seconds) or USUAL_TIMEOUT_SECONDS
    limit_bytes = rules.output_limit_bytes or definition.output_limit_bytes or USUAL_OUTPUT_BYTES
    chosen = rules.effect_keys.get(definition.name)
    return replace(
        definition,
        name=f"{source}{SEPARATOR}{definition.name}",
        effect_class=rules.effects.get(definition.name, definition.effect_class),
        timeout_seconds=min(timeout_seconds, LONGEST_TIMEOUT_SECONDS),
        output_limit_bytes=min(max(limit_bytes, MIN_OUTPUT_BYTES), LARGEST_OUTPUT_BYTES),
        compensation=None if declared is None else declared.compensation,
        effect_key=None if chosen is None else chosen.key,
        settlement=rules.settle[definition.name].settlement if definition.name in rules.settle else None,
    )
