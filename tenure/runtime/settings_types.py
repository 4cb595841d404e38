"""What a variable can hold: the types of settings, and how each is read from text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable


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
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("must be true or false")
    return words[text.lower()]


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
