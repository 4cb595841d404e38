"""Checks that an entry that an owner commits can be read again, by the next owner's fold and by the model provider.

Owners may be loops that users wrote. An entry never changes, so an unreadable entry would block its task for good.
"""

from __future__ import annotations

from tenure.domain.outputs import problem_of_output
from tenure.domain.tool_arguments import storable_json
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import body_to_domain
from tenure.wire.tool import output_to_domain


def problem_of_body(body: ledger_pb2.EntryBody) -> str:
    """Returns the problem as text that follows the field's name; "" for none."""
    try:
        body_to_domain(body)
        match body.WhichOneof("body"):
            case "assistant_message":
                storable_json(body.assistant_message.content_json or "[]")
            case "tool_outcome" if body.tool_outcome.outcome.HasField("output"):
                if problem := problem_of_output(output_to_domain(body.tool_outcome.outcome.output)):
                    return f"has an output that cannot be listed: {problem}"
            case "tools_defined":
                for tool in body.tools_defined.tools:
                    _check_schema(tool.name, tool.input_schema_json)
    except ValueError as error:
        return f"cannot be read: {error}"
    return ""


def _check_schema(name: str, schema_json: str) -> None:
    if not isinstance(storable_json(schema_json or "{}"), dict):
        raise ValueError(f"the input_schema_json of the tool {name!r} is not a JSON object")  # noqa: TRY004
