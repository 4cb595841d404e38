"""Keeping the beginning and the end of what a program prints."""

from __future__ import annotations

import codecs
from collections import deque


class KeptOutput:
    """The first three quarters and the last quarter of `limit_bytes` of a stream; the middle is counted, not kept.

    `feed` takes bytes in any portions and returns their text for live display; invalid UTF-8 becomes U+FFFD and a
    character split between portions comes out whole. NUL is kept: it is text like any other.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._tail_limit = limit_bytes // 4
        self._head_limit = limit_bytes - self._tail_limit
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._live = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.total_bytes = 0

    def feed(self, portion: bytes) -> str:
        """Take a portion, return the text that it completes."""
        self.total_bytes += len(portion)
        room = self._head_limit - len(self._head)
        self._head += portion[:room]
        if portion[room:]:
            self._keep_at_end(portion[room:])
        return self._live.decode(portion)

    def _keep_at_end(self, portion: bytes) -> None:
        self._tail.append(portion[-self._tail_limit :] if self._tail_limit else b"")
        self._tail_bytes += len(self._tail[-1])
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def truncated(self) -> bool:
        """Whether a middle part is missing."""
        return self.total_bytes > self._head_limit + self._tail_limit

    def text(self) -> str:
        """What was kept, with a line in the gap that says how many bytes are missing."""
        tail = b"".join(self._tail)
        if not self.truncated:
            return (bytes(self._head) + tail).decode(errors="replace")
        tail = tail[len(tail) - self._tail_limit :]
        missing = self.total_bytes - len(self._head) - len(tail)
        return f"{_whole_start(self._head)}\n[… {missing} bytes left out …]\n{_whole_end(tail)}"


def _whole_start(cut: bytes | bytearray) -> str:
    """Decode bytes cut at their end, without the character the cut went through."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(bytes(cut), final=False)


def _whole_end(cut: bytes) -> str:
    """Decode bytes cut at their start: up to three continuation bytes belong to a character that is lost."""
    lost = 0
    while lost < min(3, len(cut)) and cut[lost] & 0b1100_0000 == 0b1000_0000:
        lost += 1
    return cut[lost:].decode(errors="replace")
