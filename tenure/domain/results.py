"""What the `messages` loop makes of a final answer whose task says what its result must be.

The answer is in the ledger before it is judged, and judging the same answer again comes to the same: so whoever takes
over between an answer and its correction writes that correction, and asks for nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tenure.domain.entries import ResultRejected
from tenure.domain.errors import InvalidRequest, TenureError
from tenure.domain.states import TaskState

_INSTRUCTIONS: Final = """\
When you are done, your final answer is read by a program. It must be one JSON value that fits the JSON Schema below, \
and nothing else: no words before or after it. Until then speak and use your tools as you like.

{schema}"""


def system_prompt(system: str, result_schema_json: str) -> str:
    """The system prompt of a task, from its first model call on."""
    if not result_schema_json:
        return system
    told = _INSTRUCTIONS.format(schema=result_schema_json)
    return f"{system}\n\n{told}" if system else told


def rejection(violations: Sequence[str]) -> ResultRejected:
    """What the ledger keeps, and the model reads, when an answer did not fit."""
    listed = "\n".join(f"- {violation}" for violation in violations)
    told = f"Your final answer does not fit the JSON Schema that your result must have:\n{listed}\n"
    asked = "Answer again with one JSON value that fits it, and nothing else."
    return ResultRejected(f"{told}{asked}", tuple(violations))


def refuse_success(to_state: TaskState, *, has_schema: bool, is_to_end: bool, result_json: str) -> TenureError | None:
    """Tasks whose result has a schema, and only they, succeed with JSON. `is_to_end`: another ending comes first."""
    if to_state is not TaskState.SUCCEEDED or is_to_end or has_schema == bool(result_json):
        return None
    told = "must be set: the task has a result_schema_json" if has_schema else "the task has no result_schema_json"
    return InvalidRequest(violations=[("transition.result_json", told)])
