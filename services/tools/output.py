"""Bounding what a tool says."""

from __future__ import annotations

MARKER = "\n[cut here: the output was longer than {limit} bytes]"


def cut(content: str, limit_bytes: int) -> tuple[str, bool]:
    """The content as valid text of at most `limit_bytes` (the marker included), and whether something is missing.

    NUL is text like any other. Halves of surrogate pairs, which no message can carry, become `?`.
    """
    encoded = content.encode("utf-8", errors="replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode(), False
    marker = MARKER.format(limit=limit_bytes)
    kept = encoded[: max(0, limit_bytes - len(marker))]
    return kept.decode("utf-8", errors="ignore") + marker, True
