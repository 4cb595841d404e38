"""Rules of texts: an upper bound of their tokens, what people may be shown, and content that is kept as a file."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits, punctuation
from typing import Final

BYTES_PER_TOKEN: Final = 3
_LETTERS, _CAPITALS, _DIGITS = (text.encode() for text in (ascii_lowercase, ascii_uppercase, digits))
_KINDS: Final = bytes.maketrans(
    _LETTERS + _CAPITALS + _DIGITS + punctuation.encode(), b"a" * 26 + b"A" * 26 + b"0" * 10 + b"!" * len(punctuation)
)
"""Writes `a` for each letter, `A` for each capital, `0` for each digit and `!` for each mark."""
_KEY: Final = b"a" * 16
_EXTRA_FOR_KEY: Final = 6
"""A run of lowercase letters this long is rather a key than a word: its tokens have two letters, not five."""

_LEADS: Final = ((bytes(range(0xC2, 0xE0)), 1), (bytes(range(0xE0, 0xF0)), 2), (bytes(range(0xF0, 0xF5)), 4))
"""The first bytes of characters of two, three or four bytes, and the tokens that such a character takes at most."""


def text_tokens(text: str) -> int:
    """Returns an upper bound of the tokens of a text. Takes 20 µs for a KiB."""
    encoded = text.encode("utf-8", "surrogatepass")
    kinds = encoded.translate(_KINDS)
    pieces = _pieces(kinds) + _EXTRA_FOR_KEY * kinds.count(_KEY)
    if not encoded.isascii():
        pieces += sum(tokens * (len(encoded) - len(encoded.translate(None, leads))) for leads, tokens in _LEADS)
    return max(pieces + pieces // 12, -(-len(encoded) // BYTES_PER_TOKEN))


def estimated_tokens(size_bytes: int) -> int:
    """Returns the tokens that text of this size usually has. Output without a final usage is billed with it."""
    return -(-size_bytes // 4)


def _pieces(kinds: bytes) -> int:
    """Counts pieces: up to five letters, of which only the first may be a capital, up to two digits, or one mark.

    Replacing and counting takes a third of the time of a regular expression.
    """
    words = kinds.replace(b"A", b" a").replace(b"aaaaa", b"5")
    for rest in (b"aaaa", b"aaa", b"aa"):
        words = words.replace(rest, b"a")
    return words.count(b"5") + words.count(b"a") + kinds.count(b"0") - kinds.count(b"00") + kinds.count(b"!")


# Text on which a person decides: a hostile argument must not look harmless.

_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols that count as printable and show nothing, such as the fillers of Hangul."""


def visible_text(text: str) -> str:
    """Returns the text with each character that shows nothing, or reorders what is shown, as its number."""
    return "".join(
        one if (one.isprintable() and not _BLANK.match(one)) or one == "\n" else f"\\u{ord(one):04x}" for one in text
    )


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def span_seconds(text: str) -> float | None:
    """Returns the seconds of `2h`, `1h30m`, `90s`, `250ms` or `30d`; None for another text."""
    parts = _SPAN_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def one_line(text: str, most: int) -> str:
    """Returns at most `most` characters on one line, without characters that cannot be shown."""
    return shortened(" ".join("".join(one if one.isprintable() else " " for one in text).split()), most)


def shortened(text: str, most: int) -> str:
    """Returns at most `most` characters of the text; an ellipsis stands for the rest."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def bytes_text(size: int) -> str:
    """Returns a size in bytes: `512 B`, `1.5 KiB`, `64 MiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"


def largest_part_text(part: str, size: int) -> str:
    """Returns what a failure says about a prompt that is too long."""
    return f"its largest part is {part}, {bytes_text(size)}"


# Kept content: a value that is too large for the ledger, as a file of the task's workspace.
#
# The name of the file is the digest of its content. The ledger has the reference. The agent's programs can change and
# delete the file, so each reader compares the digest.

MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
MAX_PART_BYTES: Final = 1024 * 1024
"""Of one request."""
KEPT_DIRECTORY: Final = "outputs"
CONTENT_MISMATCH: Final = "CONTENT_MISMATCH"
"""The reason of the refusal of parts that do not have the digest."""

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")
_PATH: Final = re.compile(rf"{KEPT_DIRECTORY}/sha256-([0-9a-f]{{64}})\Z")


@dataclass(frozen=True, slots=True)
class KeptContent:
    """A reference to kept content. `digest`: sha256:<hex>."""

    path: str
    digest: str
    size_bytes: int


def kept_as(content: bytes) -> KeptContent:
    """Returns the reference that this content has when it is kept."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return KeptContent(kept_path(digest), digest, len(content))


def kept_path(digest: str) -> str:
    """Returns the path of the content with this digest. Raises ValueError for another text."""
    match = _DIGEST.match(digest)
    if match is None:
        raise ValueError(f"{digest!r} is not sha256:<hex>")
    return f"{KEPT_DIRECTORY}/sha256-{match[1]}"


def digest_of_path(path: str) -> str:
    """Returns the digest in the path of kept content; "" for another path."""
    match = _PATH.match(path)
    return "" if match is None else f"sha256:{match[1]}"
