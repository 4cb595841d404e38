"""Checks that an entry that an owner commits can be read again, by the next owner's fold and by the model provider.

Owners may be loops that users wrote. An entry never changes, so an unreadable entry would block its task for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tenure.domain.outputs import problem_of_output
from tenure.domain.tool_arguments import storable_json
from tenure.wire.ledger import blocks_of, body_to_domain
from tenure.wire.tool import output_to_domain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.v1 import ledger_pb2


def problem_of_body(kind: str, body: ledger_pb2.EntryBody) -> str:
    """Returns the problem as text that follows the field's name; "" for none."""
    try:
        if kind not in ALWAYS_READ:
            body_to_domain(body)
        if kind in _CHECKS:
            _CHECKS[kind](getattr(body, kind))
    except ValueError as error:
        return f"cannot be read: {error}"
    return ""


ALWAYS_READ: Final = frozenset({"assistant_message", "tool_intent", "tool_outcome", "control_step", "user_message"})
"""The kinds whose conversion refuses nothing but the content of an answer: they are not converted here."""


def _check_answer(answer: ledger_pb2.AssistantMessage) -> None:
    blocks_of(storable_json(answer.content_json or "[]"))


def _check_outcome(outcome: ledger_pb2.ToolOutcome) -> None:
    result = outcome.outcome
    if result.HasField("output") and (problem := problem_of_output(output_to_domain(result.output))):
        raise ValueError(f"its output cannot be listed: {problem}")


def _check_tools(defined: ledger_pb2.ToolsDefined) -> None:
    for tool in defined.tools:
        if not isinstance(storable_json(tool.input_schema_json or "{}"), dict):
            raise ValueError(f"the input_schema_json of the tool {tool.name!r} is not a JSON object")  # noqa: TRY004


_CHECKS: Final[dict[str, Callable[[Any], None]]] = {
    "assistant_message": _check_answer,
    "tool_outcome": _check_outcome,
    "tools_defined": _check_tools,
}
