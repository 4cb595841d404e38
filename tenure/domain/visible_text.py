"""Text on which a person decides: a hostile argument must not look harmless."""

from __future__ import annotations

import re
from typing import Final

_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols that count as printable and show nothing, such as the fillers of Hangul."""


def visible_text(text: str) -> str:
    """Returns the text with each character that shows nothing, or reorders what is shown, as its number."""
    return "".join(
        one if (one.isprintable() and not _BLANK.match(one)) or one == "\n" else f"\\u{ord(one):04x}" for one in text
    )


def one_line(text: str, most: int) -> str:
    """Returns at most `most` characters on one line, without characters that cannot be shown."""
    return shortened(" ".join("".join(one if one.isprintable() else " " for one in text).split()), most)


def shortened(text: str, most: int) -> str:
    """Returns at most `most` characters of the text; an ellipsis stands for the rest."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
