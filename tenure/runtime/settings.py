"""Settings: one frozen dataclass per process, filled from an environment that is passed in.

    @settings_class
    class Settings:
        address: Address = setting("where to serve", default="0.0.0.0:8472")
        lease_ttl_seconds: float = setting("how long a lease lasts", default=5.0, minimum=1.0)
        database: Secret = setting("DSN of the ledger")
        process: ProcessSettings = group(ProcessSettings)

        def problems(self) -> Iterator[str]: ...  # relations between the settings

    settings = load(Settings, environment, prefix="TENURE_CHECKPOINT_")

A field's variable is the prefix and its name in capitals. Every missing, unknown or malformed variable and every broken
relation is told in one ConfigurationError. Unknown means: begins with this process's prefix and is not declared.
A `group` is settings that several processes share, under a prefix of its own.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, dataclass_transform, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "Address",
    "ConfigurationError",
    "Secret",
    "describe",
    "group",
    "load",
    "setting",
    "settings_class",
]


# What a variable can hold: the types of settings, and how each is read from text.


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that shows itself to nobody, logs included: only `reveal()` gives it out."""

    _text: str

    def reveal(self) -> str:
        """The secret itself, to be handed to whoever needs it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


class Address(str):
    """A checked `host:port`; an IPv6 host stands in brackets."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """Without the port, and without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """0 asks for a free one."""
        return int(self.rpartition(":")[2])


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def _bool(text: str) -> bool:
    message = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in message:
        raise ValueError("must be true or false")
    return message[text.lower()]


def _address(text: str) -> Address:
    host, separator, port = text.rpartition(":")
    if not (separator and host and port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ValueError("must be host:port")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("must be host:port, with an IPv6 host in brackets")
    return Address(text)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


PARSERS: Final[dict[Any, Callable[[str], Any]]] = {
    int: _int,
    float: _float,
    bool: _bool,
    str: str,
    Secret: Secret,
    Address: _address,
    Path: Path,
    tuple[str, ...]: lambda text: tuple(_parts(text)),
    tuple[Address, ...]: lambda text: tuple(_address(part) for part in _parts(text)),
}

_Settings = TypeVar("_Settings")
SHARED_PREFIX: Final = "TENURE_"


class ConfigurationError(Exception):
    """The process cannot run as it is configured. Its text is for the operator; `process.run` exits with 2."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(["the configuration does not hold:", *(f"  - {problem}" for problem in problems)]))


def setting(
    help: str,  # noqa: A002  the word operators know
    *,
    default: Any = MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    variable: str | None = None,
) -> Any:
    """Declare a field of a settings class. Bounds are inclusive. `variable` is a full name, for those not ours."""
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "choices": tuple(choices), "variable": variable}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def group(kind: type[_Settings], prefix: str = SHARED_PREFIX) -> _Settings:
    """Declare a field that is itself settings, under `prefix`."""
    shared: _Settings = field(metadata={"group": kind, "prefix": prefix})
    return shared


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(setting, group))
def settings_class(kind: type[_Settings]) -> type[_Settings]:
    """A frozen dataclass with keyword-only fields, each declared by `setting` or `group`."""
    return dataclass(frozen=True, kw_only=True)(kind)


def load(kind: type[_Settings], environment: Mapping[str, str], *, prefix: str) -> _Settings:
    """Fill `kind`. Raises ConfigurationError with all that is wrong. An empty variable counts as not given."""
    declared = list(_declared(kind, prefix))
    problems = list(_unknown(declared, environment, prefix))
    loaded = _fill(kind, environment, prefix, problems)
    if problems or loaded is None:
        raise ConfigurationError(problems)
    return loaded


def describe(kind: type[Any], *, prefix: str) -> str:
    """The table of variables for `--help` and the documentation: name, type, default, meaning."""
    rows = [(d.variable, d.type_name, d.default_text, d.help_text) for d in _declared(kind, prefix)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


@dataclass(frozen=True)
class _Declared:
    """One field with what is known of it."""

    name: str
    variable: str
    type: Any
    default: Any
    metadata: Mapping[str, Any]

    @property
    def optional(self) -> bool:
        return self.default is not MISSING

    @property
    def type_name(self) -> str:
        if choices := self.metadata.get("choices"):
            return "|".join(choices)
        parts = getattr(self.type, "__args__", ())
        return f"{parts[0].__name__},…" if parts else str(self.type.__name__)

    @property
    def default_text(self) -> str:
        if not self.optional:
            return "required"
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return "-" if self.default in {None, ""} else str(self.default)

    @property
    def help_text(self) -> str:
        low, high = self.metadata.get("minimum"), self.metadata.get("maximum")
        bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
        return f"{self.metadata.get('help', '')}{' (' + ', '.join(bounds) + ')' if bounds else ''}"

    def parse(self, text: str) -> Any:
        """The value; ValueError says what it should have been."""
        value = PARSERS[self.type](text)
        low, high = self.metadata.get("minimum"), self.metadata.get("maximum")
        if low is not None and value < low:
            raise ValueError(f"must be at least {low}")
        if high is not None and value > high:
            raise ValueError(f"must be at most {high}")
        if (choices := self.metadata.get("choices")) and value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value


def _declared(kind: type[Any], prefix: str, *, groups: bool = True) -> Iterator[_Declared]:
    types = get_type_hints(kind)
    for one in fields(kind):
        if inner := one.metadata.get("group"):
            if groups:
                yield from _declared(inner, one.metadata["prefix"])
            continue
        variable = one.metadata.get("variable") or f"{prefix}{one.name.upper()}"
        plain = _without_none(types[one.name])
        assert plain in PARSERS, f"{kind.__name__}.{one.name}: no way to read a {plain} from a variable"
        yield _Declared(one.name, variable, plain, one.default, one.metadata)


def _without_none(hint: Any) -> Any:
    """`int | None` is read as int; None is for a default only."""
    left = [part for part in getattr(hint, "__args__", ()) if part is not type(None)]
    return left[0] if type(None) in getattr(hint, "__args__", ()) and len(left) == 1 else hint


def _unknown(declared: Sequence[_Declared], environment: Mapping[str, str], prefix: str) -> Iterator[str]:
    names = {one.variable for one in declared}
    for name in sorted(environment):
        if name.startswith(prefix) and name not in names:
            close = get_close_matches(name, names, n=1)
            yield f"{name} is not a setting{f' (did you mean {close[0]}?)' if close else ''}"


def _fill(kind: type[_Settings], environment: Mapping[str, str], prefix: str, problems: list[str]) -> _Settings | None:
    """The filled class, or None after adding to `problems`. Relations are checked once all values are there."""
    before = len(problems)
    values: dict[str, Any] = {}
    for one in _declared(kind, prefix, groups=False):
        text = environment.get(one.variable, "").strip()
        if not text:
            if not one.optional:
                problems.append(f"{one.variable} is missing: {one.help_text}")
            continue
        try:
            values[one.name] = one.parse(text)
        except ValueError as error:
            shown = "" if one.type is Secret else f", not {text!r}"
            problems.append(f"{one.variable} {error}{shown}")
    for inner in (one for one in fields(kind) if "group" in one.metadata):  # type: ignore[arg-type]  # a dataclass
        values[inner.name] = _fill(inner.metadata["group"], environment, inner.metadata["prefix"], problems)
    if len(problems) > before:
        return None
    filled = kind(**values)
    relations: Callable[[], Iterator[str]] | None = getattr(filled, "problems", None)
    problems.extend(relations() if relations else ())
    return filled
