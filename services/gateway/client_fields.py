"""Sets the fields of a client's request that the gateway decides, before the request is validated.

The contract marks these fields (`by_gateway` in rule.proto). The gateway and the services behind it share the types of
their requests, and the services trust the marked fields: so no value of a client may get through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import uuid_utils
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tenure.domain.access import Permission
from tenure.runtime.request_context import current_tenant
from tenure.runtime.security.access_control import ANYONE, current_principal
from tenure.v1 import rule_pb2
from tenure.validators.rules import is_map, rule_of
from tenure.wire.webhook_service import new_secret


def new_id() -> str:
    """Returns a new UUIDv7."""
    return str(uuid_utils.uuid7())


def caller() -> str:
    """Returns the actor of this call's entries: the authenticated caller; without authentication, the tenant."""
    principal = current_principal()
    return f"tenant/{current_tenant()}" if principal is ANYONE else principal.name


def is_operator() -> bool:
    """Returns whether the caller may act in every tenant."""
    return Permission.OPERATE in current_principal().permissions


_REPLACED: Final[Mapping[str, Callable[[], Any]]] = {"actor": caller, "all_tenants": is_operator}
"""What the gateway replaces a field by. It clears every other field that it replaces; a handler may set it later."""
_FILLED: Final[Mapping[str, Callable[[], Any]]] = {"request_id": new_id, "secret": new_secret}
"""What the gateway fills into an empty field. A repeat behind the gateway then sends the same value."""


def set_own_fields(request: Message) -> None:
    """Replaces the marked fields of a request of a client, and fills in those that it left empty.

    Drops fields that this version does not know: a newer service may trust them as fields of the gateway.
    """
    request.DiscardUnknownFields()
    _set_marked(request)


def _set_marked(request: Message) -> None:
    replaced, filled, parts = _marked(request.DESCRIPTOR)
    for name in replaced:
        request.ClearField(name)
        if name in _REPLACED:
            setattr(request, name, _REPLACED[name]())
    for name in filled:
        if not getattr(request, name):
            setattr(request, name, _FILLED[name]())
    for name in parts:
        for part in _messages(request, name):
            _set_marked(part)


@cache
def _marked(kind: Descriptor) -> tuple[list[str], list[str], list[str]]:
    """Returns the replaced fields, the filled ones, and the fields with messages that have such fields."""
    marks = {field.name: rule.by_gateway for field in kind.fields if (rule := rule_of(field)) is not None}
    replaced = [name for name, mark in marks.items() if mark == rule_pb2.BY_GATEWAY_REPLACED]
    filled = [name for name, mark in marks.items() if mark == rule_pb2.BY_GATEWAY_FILLED]
    parts = [
        field.name
        for field in kind.fields
        if field.message_type is not None and not is_map(field) and _has_marks(field.message_type, frozenset())
    ]
    return replaced, filled, parts


@cache
def _has_marks(kind: Descriptor, above: frozenset[str]) -> bool:
    if kind.full_name in above:
        return False
    inner = above | {kind.full_name}
    return any(
        ((rule := rule_of(field)) is not None and bool(rule.by_gateway))
        or (field.message_type is not None and _has_marks(field.message_type, inner))
        for field in kind.fields
    )


def _messages(message: Message, name: str) -> Iterator[Message]:
    """Yields the messages in a field, without adding one."""
    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        yield from getattr(message, name)
    elif message.HasField(name):
        yield getattr(message, name)
