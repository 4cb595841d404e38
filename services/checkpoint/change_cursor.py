"""Where a reader of the feed of changes stands, as it is given out: opaque, and the same at every replica."""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from tenure.domain.errors import InvalidRequest

_VERSION: Final = "1"
_MOST: Final = 2**63 - 1


class Cursor(NamedTuple):
    """Everything up to (xid, position), included, was read. Position 0: everything below that xid."""

    feed_id: str
    xid: int
    position: int

    def encoded(self) -> str:
        told = f"{_VERSION} {self.feed_id} {self.xid} {self.position}"
        return base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> Cursor:
        """Raises InvalidRequest for what we did not give out."""
        try:
            told = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
            version, feed_id, xid, position = told.split(" ")
            cursor = cls(feed_id, int(xid), int(position))
        except (binascii.Error, UnicodeError, ValueError):
            raise _none_of_ours() from None
        if version != _VERSION or not (0 <= cursor.xid <= _MOST and 0 <= cursor.position <= _MOST):
            raise _none_of_ours()
        return cursor


def _none_of_ours() -> InvalidRequest:
    return InvalidRequest(violations=[("after_cursor", "is none of ours")])
