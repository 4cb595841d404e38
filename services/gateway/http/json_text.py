"""Writes the JSON of answers."""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any) -> str:
    """Returns a JSON value as text on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    """Returns a JSON value as UTF-8. Half of a surrogate pair, which UTF-8 does not have, becomes `?`."""
    return json_text(value).encode(errors="replace")
