"""A cache whose size does not depend on its keys: a token may be 16 KB, and a replica meets tens of thousands."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final, Generic, TypeVar

_Value = TypeVar("_Value")
MAX_ENTRIES: Final = 65_536


class DigestCache(Generic[_Value]):
    """Values by the SHA-256 of their keys, the oldest dropped first. Keys are sequences of byte strings."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._values: OrderedDict[bytes, _Value] = OrderedDict()

    def get(self, *key: bytes) -> _Value | None:
        """The value, or None."""
        return self._values.get(_digest(key))

    def put(self, value: _Value, *key: bytes) -> None:
        """Keep the value under this key."""
        self._values[_digest(key)] = value
        if len(self._values) > self._max_entries:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget all of them."""
        self._values.clear()


def _digest(key: tuple[bytes, ...]) -> bytes:
    """Lengths go in, so that no two keys give the same bytes."""
    digest = sha256()
    for part in key:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()
