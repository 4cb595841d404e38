"""h11 reads header lines and chunk headers with patterns that strangers can make take the square of a line's length.

A header of 95,000 blanks and a NUL held the event loop for 18 seconds, and with it every renewal of every lease. The
same lines are matched by those that are set here, in one pass.
"""

from __future__ import annotations

import re
from typing import Final

from h11 import _readers

# By the name in h11, what of the pattern is ambiguous, and the same without that.
_LINEAR: Final = {
    "header_field_re": (rb":[ \t]*(?P<field_value>", rb":[ \t]*+(?P<field_value>"),
    "chunk_header_re": (rb"(?P<chunk_ext>;.*)?[ \t]*\r\n", rb"(?:(?P<chunk_ext>;.*)|[ \t]*)\r\n"),
}


def read_in_one_pass() -> None:
    """For the whole process, and every client in it that speaks through h11. To be called before one connects; again
    does nothing. A release of h11 that has other patterns keeps them: tests say whether they are any better.
    """
    for name, (ambiguous, linear) in _LINEAR.items():
        pattern: re.Pattern[bytes] | None = getattr(_readers, name, None)
        if pattern is not None and ambiguous in pattern.pattern:
            setattr(_readers, name, re.compile(pattern.pattern.replace(ambiguous, linear)))
