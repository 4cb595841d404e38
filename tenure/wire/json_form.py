"""Messages as JSON in the contract's own names: what the command line prints and webhooks carry."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


def to_dict(message: Message) -> dict[str, Any]:
    """A message as JSON with the contract's field names; zeros and empty texts are told too."""
    return MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        unquote_int64_if_possible=True,
    )
