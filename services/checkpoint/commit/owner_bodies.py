"""Whether a body that an owner commits can be read again: by the next owner's fold, and by whoever sends it to a model.

Owners may be loops of others. An entry is never changed, so one that cannot be read would stop its task for good.
"""

from __future__ import annotations

import json

from tenure.domain.tool_arguments import strict_json
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import body_to_domain


def problem_of_body(body: ledger_pb2.EntryBody) -> str:
    """In words that follow the field's name; "": none."""
    try:
        body_to_domain(body)
        match body.WhichOneof("body"):
            case "assistant_message":
                _check_json(body.assistant_message.content_json or "[]")
            case "tools_defined":
                for tool in body.tools_defined.tools:
                    _check_schema(tool.name, tool.input_schema_json)
    except ValueError as error:
        return f"cannot be read: {error}"
    return ""


def _check_schema(name: str, schema_json: str) -> None:
    if not isinstance(_check_json(schema_json or "{}"), dict):
        raise ValueError(f"the input_schema_json of the tool {name!r} is no JSON object")  # noqa: TRY004  told as the rest


def _check_json(text: str) -> object:
    """What the fold would read, but nobody could send: NaN, and halves of surrogate pairs."""
    try:
        value = strict_json(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("its JSON nests too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("its JSON has half of a surrogate pair") from None
    return value
