"""Keeps h11, the parser of HTTP/1.1 of several clients and of the gateway's server, from quadratic work."""

from __future__ import annotations

import re
from typing import Final

from h11 import _readers

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
