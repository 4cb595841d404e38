"""JSON as the standard has it, from whoever writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def strict_json(text: str, *, parse_float: Callable[[str], float] = float) -> Any:
    """The value. Python's own reader would take NaN and Infinity, too. Raises ValueError, and RecursionError for what
    nests too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=parse_float)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
