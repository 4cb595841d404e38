"""The rules of own tools: tools that a worker runs itself, in its own process, behind the tool service's fence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tenure.domain.tools import Outcome, OutcomeStatus, ToolDefinition, encode

OWN_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
MAX_OWN_DESCRIPTION: Final = 4096
MAX_OWN_SCHEMA: Final = 64 * 1024
MAX_OWN_OUTPUT_BYTES: Final = 512 * 1024
NAME_TAKEN: Final = "TOOL_NAME_TAKEN"
"""The detail of a call of an own tool whose name the tool service has given to a tool or a source."""

TOO_LARGE: Final = "OUTPUT_TOO_LARGE"
OWN_STATUSES: Final = frozenset(
    {OutcomeStatus.SUCCEEDED, OutcomeStatus.FAILED, OutcomeStatus.TIMED_OUT, OutcomeStatus.IN_DOUBT}
)
"""What a worker may report: TIMED_OUT stopped the run, IN_DOUBT means that the tool does not know its effect."""


def within_limit(outcome: Outcome, definition: ToolDefinition) -> Outcome:
    """Returns the outcome, or a failure in its place if its content is too large.

    The content is never truncated: it may be JSON, which the caller parses.
    """
    size = len(encode(outcome.content))
    if size <= definition.output_limit_bytes:
        return outcome
    message = (
        f"{definition.name} returned {size} bytes, and may return {definition.output_limit_bytes}: its result was not "
        "recorded. Any effects of the call have happened. Return less, or store the result elsewhere and return where."
    )
    return replace(outcome, status=OutcomeStatus.FAILED, content=message, detail=TOO_LARGE)
