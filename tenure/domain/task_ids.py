"""Task ids as people write them: whole, or only their first characters."""

from __future__ import annotations

import re
import uuid
from typing import Final

MIN_PREFIX_DIGITS: Final = 4
_DIGITS: Final = 32
_PREFIX: Final = re.compile(rf"[0-9a-f]{{{MIN_PREFIX_DIGITS},{_DIGITS}}}")


def whole_task_id(text: str) -> str | None:
    """Returns a whole id in its usual form, or None for another text."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def id_range(prefix: str) -> tuple[str, str] | None:
    """Returns the first and the last id that begin with a prefix, whatever its case and dashes; None: no id does.

    Too short a prefix begins no id: at one moment, nearly all ids begin alike.
    """
    digits = prefix.strip().lower().replace("-", "")
    if _PREFIX.fullmatch(digits) is None:
        return None
    first, last = (str(uuid.UUID(digits.ljust(_DIGITS, filler))) for filler in "0f")
    return first, last
