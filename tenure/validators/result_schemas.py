"""The result schemas in a request. Only their size is checked here: applying them takes a process of its own.

See tenure/runtime/schema_checks.py.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

_FIELD: Final = "result_schema_json"


def schemas_in(request: Message) -> list[tuple[str, str]]:
    """Each schema in a request, with the path of its field."""
    schemas = []
    for path in _paths(request.DESCRIPTOR):
        part = request
        for name in path:
            part = getattr(part, name)
        if schema_json := getattr(part, _FIELD):
            schemas.append((".".join((*path, _FIELD)), schema_json))
    return schemas


@cache
def _paths(kind: Descriptor, above: tuple[Descriptor, ...] = ()) -> tuple[tuple[str, ...], ...]:
    """The messages that have the field. Repeated ones are left out: no request has a list of specs."""
    if kind in above:
        return ()
    inner = [field for field in kind.fields if field.message_type is not None and not field.is_repeated]
    below = [(field.name, *path) for field in inner for path in _paths(field.message_type, (*above, kind))]
    return (((),) if _FIELD in kind.fields_by_name else ()) + tuple(below)
