"""Shortens a tool's output that is too long for the model: it reads the beginning and the end, a file has all of it.

The tool service does so with the output of its tools, and the worker with what its own tools return for a model.
"""

from __future__ import annotations

from typing import Final

from tenure.domain.texts import MAX_KEPT_BYTES

SHORTENED: Final = "SHORTENED"
"""The detail of a successful outcome of an own tool whose content was shortened."""

BEGINNING_CHARACTERS: Final = 200
"""Of content that is kept: what people see of it in the outcome. Fits into the smallest limit of a tool."""

_MARKER: Final = "\n[cut here: {missing} of {whole} bytes are left out. {where}]\n"
_NOT_KEPT: Final = "They were not kept."
_LONGEST_MARKER: Final = 300


def shortened_output(encoded: bytes, limit_bytes: int, path: str, hint: str = "") -> str:
    """Returns about `limit_bytes` of the output at most. `path`: the workspace's file that has it; "": it was not kept.

    Three quarters of the space go to the beginning, one quarter to the end. `hint`: how the model reads the file.
    """
    where = _NOT_KEPT
    if path:
        is_whole = len(encoded) <= MAX_KEPT_BYTES
        which = "All of it is" if is_whole else f"The first {MAX_KEPT_BYTES} bytes are"
        where = f"{which} in the workspace's file {path}{f'; {hint}' if hint else ''}."
    kept = max(0, limit_bytes - _LONGEST_MARKER)
    head = encoded[: kept - kept // 4].decode("utf-8", errors="ignore")
    tail = encoded[len(encoded) - kept // 4 :].decode("utf-8", errors="ignore")
    missing = len(encoded) - len(head.encode()) - len(tail.encode())
    return head + _MARKER.format(missing=missing, whole=len(encoded), where=where) + tail


def whole_content(shown: str, whole: str) -> str:
    """Returns kept content in the place of its beginning. What stands before it, about a repeat for example, stays."""
    return shown.removesuffix(whole[:BEGINNING_CHARACTERS]) + whole
