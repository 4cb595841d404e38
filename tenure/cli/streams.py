"""The encoding of standard output and standard error."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TextIO


def replace_unknown_characters() -> None:
    """Lets stdout and stderr show `?` for characters that their encoding does not have, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not has_all_characters(stream):
            stream.reconfigure(errors="replace")


def has_all_characters(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().startswith("utf")
