"""Keeps h11, the parser of HTTP/1.1 of several clients and of the gateway's server, from quadratic work and from
requests that a proxy may read in another way.
"""

from __future__ import annotations

import re
from typing import Final

from h11 import RemoteProtocolError, _readers
from h11._receivebuffer import ReceiveBuffer

# h11 parses header lines and chunk headers with patterns that a malicious peer can drive to quadratic time in the
# length of a line.

# By the name in h11: the ambiguous part of the pattern, and its linear replacement.
_LINEAR: Final = {
    "header_field_re": (rb":[ \t]*(?P<field_value>", rb":[ \t]*+(?P<field_value>"),
    "chunk_header_re": (rb"(?P<chunk_ext>;.*)?[ \t]*\r\n", rb"(?:(?P<chunk_ext>;.*)|[ \t]*)\r\n"),
}


def read_in_one_pass() -> None:
    """Replaces the ambiguous patterns of h11 in the whole process, for all that uses h11.

    Call it before the first connection; a second call has no effect. A release of h11 with other patterns keeps them:
    the tests show whether they are linear.
    """
    for name, (ambiguous, linear) in _LINEAR.items():
        pattern: re.Pattern[bytes] | None = getattr(_readers, name, None)
        if pattern is not None and ambiguous in pattern.pattern:
            setattr(_readers, name, re.compile(pattern.pattern.replace(ambiguous, linear)))


class StrictLines(ReceiveBuffer):
    """The bytes of a server's connection. A proxy before the server may find another end of these requests than h11.

    So what follows them could be a request that the proxy has never seen.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Returns the lines of a head. Raises RemoteProtocolError for a line that ends without CR, and for two lengths
        of a body.
        """
        before = len(self)
        lines = super().maybe_extract_lines()
        if lines is None:
            return None
        if before - len(self) != sum(map(len, lines)) + 2 * len(lines) + 2:
            raise RemoteProtocolError("a line of the head ends with LF alone")
        names = {bytes(line.partition(b":")[0]).lower() for line in lines}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise RemoteProtocolError("the head has Content-Length and Transfer-Encoding")
        return lines
