"""Tools that a source describes, as they are offered here: named after it, within what the operator allows."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from services.tools.registry import BUILT_IN, SEPARATOR
from tenure.domain.tools import USUAL_OUTPUT_BYTES, EffectClass, ToolDefinition
from tenure.validators import MIN_OUTPUT_BYTES, TOOL_NAME

# What all parts of the config file have in common. Apart from the file's own model, which is made of the parts.


class Section(BaseModel):
    """Nothing unknown in it, and nothing changes it later. What is wrong with it is told without its content: there may
    be secrets in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, hide_input_in_errors=True)


MOST_TOOLS: Final = 256
MOST_DESCRIPTION_CHARACTERS: Final = 16 * 1024
MOST_SCHEMA_CHARACTERS: Final = 128 * 1024
USUAL_TIMEOUT_SECONDS: Final = 30.0
LONGEST_TIMEOUT_SECONDS: Final = 3600.0
LARGEST_OUTPUT_BYTES: Final = 1024 * 1024
_NOTHING: Final[Mapping[str, str]] = {}


def _not_ours(name: str) -> str:
    if name == BUILT_IN:
        raise ValueError(f"{BUILT_IN} is what the built-in tools are called")
    return name


SourceName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](_?[a-zA-Z0-9-]){0,31}$"), AfterValidator(_not_ours)]
"""Of a source in the config file: no `__`, which separates it from its tools' names."""


def _printable(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a header's value is printable ASCII")
    if text != text.strip():
        raise ValueError("a header's value neither begins nor ends with blanks")
    return value


HeaderValue = Annotated[SecretStr, AfterValidator(_printable)]
"""Of HTTP and of gRPC's metadata: anything else would be refused when a call is about to be sent."""

TenantName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says of a source's tools, by the source's own names. `allow` None: all of them."""

    allow: frozenset[str] | None = None
    effects: Mapping[str, EffectClass] = field(default_factory=dict)
    timeout_seconds: float | None = None
    output_limit_bytes: int | None = None


def offered(
    source: str, described: Iterable[ToolDefinition], rules: Rules, unusable: Mapping[str, str] = _NOTHING
) -> tuple[dict[str, ToolDefinition], list[str]]:
    """The definitions as agents see them, by the source's own names; and what is left out or asked for in vain.

    `unusable`: why a source's kind rules tools out, by their own names. Of two tools of one name the first is taken.
    """
    taken: dict[str, ToolDefinition] = {}
    problems: list[str] = []
    seen: set[str] = set()
    too_many = 0
    for definition in described:
        seen.add(definition.name)
        if rules.allow is not None and definition.name not in rules.allow:
            continue
        if problem := unusable.get(definition.name) or _problem(source, definition, taken):
            problems.append(f"{definition.name[:100]!r} is left out: {problem}")
        elif len(taken) == MOST_TOOLS:
            too_many += 1
        else:
            taken[definition.name] = _ruled(source, definition, rules)
    if too_many:
        problems.append(f"{too_many} are left out: they are over {MOST_TOOLS}; name those you want in allow")
    missing = sorted(((rules.allow or frozenset()) | rules.effects.keys()) - seen)
    return taken, problems + [f"{name!r} is named in the config file, and there is no such tool" for name in missing]


def _problem(source: str, definition: ToolDefinition, taken: Container[str]) -> str:
    """What is too long is left out rather than cut: half a description may say the opposite of the whole."""
    name = f"{source}{SEPARATOR}{definition.name}"
    if not TOOL_NAME.match(name) or not definition.name:
        return f"{name[:100]!r} is not 1 to 64 of [a-zA-Z0-9_-]"
    if definition.name in taken:
        return "there are two tools of this name"
    if len(definition.description) > MOST_DESCRIPTION_CHARACTERS:
        return f"its description has more than {MOST_DESCRIPTION_CHARACTERS} characters"
    if len(definition.input_schema_json) > MOST_SCHEMA_CHARACTERS:
        return f"its schema has more than {MOST_SCHEMA_CHARACTERS} characters"
    return ""


def _ruled(source: str, definition: ToolDefinition, rules: Rules) -> ToolDefinition:
    """What the source leaves unsaid is the usual; what is beyond bounds is cut to them."""
    timeout_seconds = rules.timeout_seconds or max(0.0, definition.timeout_seconds) or USUAL_TIMEOUT_SECONDS
    limit_bytes = rules.output_limit_bytes or definition.output_limit_bytes or USUAL_OUTPUT_BYTES
    return replace(
        definition,
        name=f"{source}{SEPARATOR}{definition.name}",
        effect_class=rules.effects.get(definition.name, definition.effect_class),
        timeout_seconds=min(timeout_seconds, LONGEST_TIMEOUT_SECONDS),
        output_limit_bytes=min(max(limit_bytes, MIN_OUTPUT_BYTES), LARGEST_OUTPUT_BYTES),
    )
