"""Reads the effect class that a program gives a tool: Effect.KEYED, or its name."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.domain.tools import EffectClass


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
