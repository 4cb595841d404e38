"""The metrics and labels that an expression of PromQL names. Enough for our own rules: `promtool` parses for real."""

from __future__ import annotations

import re
from typing import NamedTuple

_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?![\w:])\s*(\{[^}]*\})?(?!\s*\()")
_MATCHER = re.compile(r'([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
_DURATION = re.compile(r"\[[^\]]*\]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan", "Inf", "NaN"})


class Selector(NamedTuple):
    """A metric with its matchers: label, operator, text."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def equalities(self) -> list[tuple[str, str]]:
        """The labels that must have one value, or one of several."""
        found = []
        for label, operator, text in self.matchers:
            if operator == "=":
                found.append((label, text))
            elif operator == "=~" and re.fullmatch(r"[\w|]+", text):
                found += [(label, part) for part in text.split("|")]
        return found


class Named(NamedTuple):
    """The names in an expression."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]
    """The labels by which it groups or joins."""


def named_in(expression: str) -> Named:
    """Returns what the expression names."""
    grouped = {label.strip() for part in _GROUPING.findall(expression) for label in part.split(",") if label.strip()}
    plain = _DURATION.sub("", _GROUPING.sub(" ", expression))
    selectors = []
    for found in _SELECTOR.finditer(_without_strings_outside_of_braces(plain)):
        name, braces = found.groups()
        if name not in _WORDS:
            selectors.append(Selector(name, tuple(_MATCHER.findall(braces or ""))))
    return Named(tuple(selectors), frozenset(grouped))


def _without_strings_outside_of_braces(text: str) -> str:
    parts = re.split(r"(\{[^}]*\})", text)
    return "".join(part if part.startswith("{") else _STRING.sub("", part) for part in parts)
