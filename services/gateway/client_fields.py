"""Sets the fields of a client's request that the gateway decides, before the request is validated, and refuses fields
that the client may not set.

The contract marks these fields (`by_gateway` in rule.proto). The gateway and the services behind it share the types of
their requests, and the services trust the marked fields: so no value of a client may get through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import uuid_utils
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from tenure.domain.access import Permission, check_permission
from tenure.runtime.request_context import current_tenant
from tenure.runtime.security.access_control import ANYONE, current_principal
from tenure.v1 import rule_pb2
from tenure.validators.rules import is_map, rule_of
from tenure.wire.access import PERMISSIONS
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

    Raises PermissionDenied for a field that needs a permission that the client does not have.
    """
    marked = _marked(request.DESCRIPTOR)
    for name in marked.replaced:
        request.ClearField(name)
        if name in _REPLACED:
            setattr(request, name, _REPLACED[name]())
    for name in marked.filled:
        if not getattr(request, name):
            setattr(request, name, _FILLED[name]())
    if marked.guarded:
        for field, _ in request.ListFields():
            if field.name in marked.guarded:
                check_permission(current_principal(), marked.guarded[field.name], f"to set {field.name}")
    for name in marked.parts:
        for part in _messages(request, name):
            set_own_fields(part)


class _Marks(NamedTuple):
    """The fields of a message that are replaced, those that are filled in, those that need a permission, and those with
    messages that have such fields.
    """

    replaced: Sequence[str]
    filled: Sequence[str]
    guarded: Mapping[str, Permission]
    parts: Sequence[str]


@cache
def _marked(kind: Descriptor) -> _Marks:
    rules = {field.name: rule for field in kind.fields if (rule := rule_of(field)) is not None}
    return _Marks(
        [name for name, rule in rules.items() if rule.by_gateway == rule_pb2.BY_GATEWAY_REPLACED],
        [name for name, rule in rules.items() if rule.by_gateway == rule_pb2.BY_GATEWAY_FILLED],
        {name: PERMISSIONS.to_domain(rule.permission) for name, rule in rules.items() if rule.permission},
        [
            field.name
            for field in kind.fields
            if field.message_type is not None and not is_map(field) and _has_marks(field.message_type, frozenset())
        ],
    )


@cache
def _has_marks(kind: Descriptor, above: frozenset[str]) -> bool:
    if kind.full_name in above:
        return False
    inner = above | {kind.full_name}
    return any(
        ((rule := rule_of(field)) is not None and bool(rule.by_gateway or rule.permission))
        or (field.message_type is not None and _has_marks(field.message_type, inner))
        for field in kind.fields
    )


def _messages(message: Message, name: str) -> Iterator[Message]:
    """Yields the messages in a field, without adding one."""
    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        yield from getattr(message, name)
    elif message.HasField(name):
        yield getattr(message, name)
