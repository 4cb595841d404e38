"""Kept content: a value that is too large for the ledger, as a file of the task's workspace.

The name of the file is the digest of its content. The ledger has the reference. The agent's programs can change and
delete the file, so each reader compares the digest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

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
