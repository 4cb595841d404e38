"""Decodes the body of an HTTP response within a bound, whatever a few of its bytes unpack to."""

from __future__ import annotations

import zlib
from typing import Final

READABLE_ENCODINGS: Final = "gzip, deflate"
"""For Accept-Encoding. The Python standard library cannot decode other encodings within a bound."""

_AUTOMATIC: Final = 32 + zlib.MAX_WBITS  # gzip or zlib, by the first bytes
_RAW: Final = -zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8
_GZIP: Final = b"\x1f\x8b"


class BadEncoding(ValueError):  # noqa: N818  the name says what is bad
    """The encoding of a body is not supported, or the body does not match it."""


class BodyDecoder:
    """Decodes one body until it has more than `most_bytes` bytes, as received or decoded.

    A few received bytes can decode to a bomb, and endless ones to nothing.
    """

    def __init__(self, encoding: str, most_bytes: int) -> None:
        self.content = bytearray()
        self._most_bytes = most_bytes
        self._encoding = encoding.strip().lower()
        self._decoder: zlib._Decompress | None = None
        self._held = b""
        self._received_bytes = self._taken_bytes = 0
        if self._encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
            raise BadEncoding(f"its body has the unsupported encoding {self._encoding[:40]}")

    @property
    def is_full(self) -> bool:
        """Whether the limit is passed."""
        return max(self._received_bytes, self._taken_bytes + len(self.content)) > self._most_bytes

    def take(self) -> bytes:
        """Returns the decoded bytes that were not taken yet. They count towards the limit."""
        taken = bytes(self.content)
        self.content.clear()
        self._taken_bytes += len(taken)
        return taken

    def add(self, chunk: bytes) -> None:
        """Decodes the next part of the body. Raises BadEncoding."""
        self._received_bytes += len(chunk)
        if self._encoding in {"", "identity"}:
            self.content += chunk
            return
        chunk, self._held = self._held + chunk, b""
        try:
            while chunk and not self.is_full:
                chunk = self._decode(chunk)
        except zlib.error as error:
            raise BadEncoding(f"its body is not valid {self._encoding}") from error

    def end(self) -> None:
        """Raises BadEncoding if the body ended too early."""
        if self._decoder is not None and not self._decoder.eof:
            raise BadEncoding("its body ends in the middle")

    def _decode(self, chunk: bytes) -> bytes:
        """Decodes a part of the chunk and returns the rest."""
        if self._decoder is not None and self._decoder.eof:
            if len(chunk) < len(_GZIP):
                self._held = chunk
            if not chunk.startswith(_GZIP):
                return b""  # padding
            self._decoder = None  # several gzip members may follow each other
        if self._decoder is None:
            self._decoder = zlib.decompressobj(self._window(chunk))
        self.content += self._decoder.decompress(chunk, self._most_bytes + 1 - self._taken_bytes - len(self.content))
        return self._decoder.unconsumed_tail or self._decoder.unused_data

    def _window(self, chunk: bytes) -> int:
        """Returns the window bits for zlib. `deflate` is zlib by the standard, but some servers send raw deflate."""
        is_zlib = chunk[0] & 0x0F == _ZLIB_METHOD and (len(chunk) < 2 or int.from_bytes(chunk[:2]) % 31 == 0)
        return _RAW if self._encoding == "deflate" and not is_zlib else _AUTOMATIC
