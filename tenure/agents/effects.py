"""Reads what a program declares of tools by their names, such as an effect class: Effect.KEYED, or its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from tenure.domain.tools import EffectClass, unknown_tool_text


def effect_class(given: EffectClass | str | None, tool: str = "") -> EffectClass | None:
    """Returns the effect class. None: the tool runs in the function itself. Raises ValueError for an unknown name."""
    if given is None:
        return None
    try:
        return EffectClass(given)
    except ValueError:
        where, known = f"tool {tool}" if tool else "effect", ", ".join(EffectClass)
        raise ValueError(f"{where}: {given!r} is not an effect class; use one of {known}, or None") from None


def effect_classes(given: Mapping[str, EffectClass | None]) -> dict[str, EffectClass | None]:
    """Returns the effect classes of tools by name. Raises ValueError."""
    return {tool: effect_class(effect, tool) for tool, effect in given.items()}


def check_declared(agent: str, tools: Collection[str], declared: Mapping[str, Collection[str]]) -> None:
    """Raises ValueError for a name that none of the agent's tools has. `declared`: the names, by argument."""
    for argument, names in declared.items():
        for name in names:
            if name not in tools:
                raise ValueError(
                    f"agent {agent}: {argument}: {unknown_tool_text(name, get_close_matches(name, tools))}"
                )
