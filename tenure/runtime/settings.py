"""Settings: one frozen dataclass per process, filled from an environment that is passed in.

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        address: Address = setting("where to serve", default="0.0.0.0:8472")
        lease_ttl_seconds: float = setting("how long a lease lasts", default=5.0, minimum=1.0)
        database: Secret = setting("DSN of the ledger")
        process: ProcessSettings = group(ProcessSettings)

        def problems(self) -> Iterator[str]: ...  # relations between the settings

    settings = load(Settings, environment, prefix="TENURE_CHECKPOINT_")

A field's variable is the prefix and the field's name in capitals. A secret may also be in a file, which the variable
with `_FILE` at its end names: other processes of the account can read the environment of a process.

`load` raises one ConfigurationError that lists every
missing, unknown and malformed variable and every broken relation. An unknown variable begins with this process's prefix
and is not declared. A `group` holds settings that several processes share, under its own prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

# The types that a setting can have, and how each is parsed.


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A string whose `str` and `repr` are masked, so that no log shows it. Only `reveal()` returns it."""

    _text: str

    def reveal(self) -> str:
        """Returns the unmasked string."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


_EVERY_INTERFACE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  compared, never bound to


class Address(str):
    """A validated `host:port`. An IPv6 host is in brackets."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """The host without the port and without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port. 0 lets the operating system choose a free one."""
        return int(self.rpartition(":")[2])

    @property
    def from_here(self) -> Address:
        """Where this machine reaches what listens at this address."""
        host = _EVERY_INTERFACE.get(self.host)
        return self if host is None else Address(f"{host}:{self.rpartition(':')[2]}")


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
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("must be true or false")
    return values[text.lower()]


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
FILE_SUFFIX: Final = "_FILE"


class ConfigurationError(Exception):
    """The configuration is invalid. The text is for the operator; `process.run` prints it and exits with code 2."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(["invalid configuration:", *(f"  - {problem}" for problem in problems)]))


def setting(
    help: str,  # noqa: A002  operators know the word
    *,
    default: Any = MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    variable: str | None = None,
) -> Any:
    """Declares a field of a settings class. Bounds are inclusive.

    `variable` is the full name of the variable, for a name that another project defines.
    """
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "choices": tuple(choices), "variable": variable}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def group(kind: type[_Settings], prefix: str = SHARED_PREFIX) -> _Settings:
    """Declares a field whose type is another settings class, read under `prefix`.

    If all settings of the class have defaults, the field has the default too.
    """
    declared: list[Any] = list(fields(kind))  # type: ignore[arg-type]  # a dataclass
    has_defaults = all(one.default is not MISSING or one.default_factory is not MISSING for one in declared)
    default: Any = {"default_factory": kind} if has_defaults else {}
    shared: _Settings = field(metadata={"group": kind, "prefix": prefix}, **default)
    return shared


def load(kind: type[_Settings], environment: Mapping[str, str], *, prefix: str) -> _Settings:
    """Returns an instance of `kind` with the values of the environment. An empty variable counts as unset.

    Raises ConfigurationError with the list of all problems.
    """
    declared = list(_declared(kind, prefix))
    problems = list(_unknown(declared, environment, prefix))
    loaded = _fill(kind, environment, prefix, problems)
    if problems or loaded is None:
        raise ConfigurationError(problems)
    return loaded


def secret_text(variable: str, environment: Mapping[str, str]) -> str:
    """Returns the text of a variable, or of the file that the variable with `_FILE` at its end names; "" for none.

    Raises ValueError for a file that cannot be read, and if both are set.
    """
    text, file = (environment.get(name, "").strip() for name in (variable, f"{variable}{FILE_SUFFIX}"))
    if not file:
        return text
    if text:
        raise ValueError(f"is set, and {variable}{FILE_SUFFIX} too; unset one of them")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"cannot be read from {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot be read from {file}: the file is not text") from None


def describe(kind: type[Any], *, prefix: str) -> str:
    """Returns a table of the variables for `--help` and the documentation: name, type, default, meaning."""
    rows = [row for declared in _declared(kind, prefix) for row in declared.rows()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    )


@dataclass(frozen=True)
class _Declared:
    """One declared field with its variable, type, default and metadata."""

    name: str
    variable: str
    type: Any
    default: Any
    metadata: Mapping[str, Any]

    @property
    def file_variable(self) -> str | None:
        """The variable with the file of a secret; None for other types."""
        return f"{self.variable}{FILE_SUFFIX}" if self.type is Secret else None

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

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yields variable, type, default and meaning of each variable."""
        yield self.variable, self.type_name, self.default_text, self.help_text
        if self.file_variable is not None:
            yield self.file_variable, Path.__name__, "-", f"a file with {self.variable} instead"

    def text(self, environment: Mapping[str, str]) -> str:
        """Returns the text of the variable, or of the file of a secret; "" for none.

        Raises ValueError for a file that cannot be read, and if both are set.
        """
        if self.type is Secret:
            return secret_text(self.variable, environment)
        return environment.get(self.variable, "").strip()

    def parse(self, text: str) -> Any:
        """Returns the value. Raises ValueError that says what a valid value looks like."""
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
    for declared in fields(kind):
        if inner := declared.metadata.get("group"):
            if groups:
                yield from _declared(inner, declared.metadata["prefix"])
            continue
        variable = declared.metadata.get("variable") or f"{prefix}{declared.name.upper()}"
        plain = _without_none(types[declared.name])
        assert plain in PARSERS, f"{kind.__name__}.{declared.name}: settings have no parser for {plain}"
        yield _Declared(declared.name, variable, plain, declared.default, declared.metadata)


def _without_none(hint: Any) -> Any:
    """Returns the type to parse: int for `int | None`, because only a default can be None."""
    left = [part for part in getattr(hint, "__args__", ()) if part is not type(None)]
    return left[0] if type(None) in getattr(hint, "__args__", ()) and len(left) == 1 else hint


def _unknown(declared: Sequence[_Declared], environment: Mapping[str, str], prefix: str) -> Iterator[str]:
    names = {known.variable for known in declared} | {known.file_variable for known in declared if known.file_variable}
    for name in sorted(environment):
        if name.startswith(prefix) and name not in names:
            close = get_close_matches(name, names, n=1)
            yield f"{name} is not a setting{f' (did you mean {close[0]}?)' if close else ''}"


def _fill(kind: type[_Settings], environment: Mapping[str, str], prefix: str, problems: list[str]) -> _Settings | None:
    """Returns the instance, or None after it added to `problems`. Checks relations only when all values are valid."""
    before = len(problems)
    values: dict[str, Any] = {}
    for declared in _declared(kind, prefix, groups=False):
        text = ""
        try:
            text = declared.text(environment)
            if text:
                values[declared.name] = declared.parse(text)
            elif not declared.optional:
                problems.append(f"{declared.variable} is missing: {declared.help_text}")
        except ValueError as error:
            shown = "" if declared.type is Secret else f", not {text!r}"
            problems.append(f"{declared.variable} {error}{shown}")
    for inner in (item for item in fields(kind) if "group" in item.metadata):  # type: ignore[arg-type]  # a dataclass
        values[inner.name] = _fill(inner.metadata["group"], environment, inner.metadata["prefix"], problems)
    if len(problems) > before:
        return None
    filled = kind(**values)
    relations: Callable[[], Iterator[str]] | None = getattr(filled, "problems", None)
    problems.extend(relations() if relations else ())
    return filled
