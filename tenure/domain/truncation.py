"""How much of a text a model is shown: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tenure.domain.tools import Outcome

CUT: Final = "\n[cut here: the output was longer than {limit} bytes]"


def encode(content: str) -> bytes:
    """As UTF-8. NUL is text like any other; halves of surrogate pairs, which no message can carry, become `?`."""
    return content.encode("utf-8", errors="replace")


def cut(content: str, limit_bytes: int) -> tuple[str, bool]:
    """The content's beginning as valid text of at most `limit_bytes`, marker included, and whether more is missing."""
    encoded = encode(content)
    if len(encoded) <= limit_bytes:
        return encoded.decode(), False
    marker = CUT.format(limit=limit_bytes)
    kept = encoded[: max(0, limit_bytes - len(marker))]
    return kept.decode("utf-8", errors="ignore") + marker, True


def bounded(outcome: Outcome, limit_bytes: int) -> Outcome:
    """What a person says of a call may be longer than its tool may say: the ledger has all of it."""
    content, truncated = cut(outcome.content, limit_bytes)
    return replace(outcome, content=content, truncated=truncated)
