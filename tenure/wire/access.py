"""Reads the access rule of each method from the contract, and converts API keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from tenure.domain.access import Access, Permission, Role, StoredApiKey
from tenure.v1 import access_pb2, rule_pb2
from tenure.v1 import api_key_service_pb2 as api_key_pb
from tenure.wire.common import EnumMap

ROLES: Final = EnumMap(Role, dict(access_pb2.Role.items()), "ROLE", None)
PERMISSIONS: Final = EnumMap(Permission, dict(access_pb2.Permission.items()), "PERMISSION", None)


def stored_key(response: api_key_pb.LookUpApiKeyResponse) -> StoredApiKey:
    """Returns the key in the ledger."""
    key = response.api_key
    permissions = frozenset(PERMISSIONS.to_domain(permission) for permission in key.permissions)
    return StoredApiKey(key.key_id, key.name, key.tenant or None, permissions, response.digest, response.valid)


@cache
def access_rules(service: str) -> Mapping[str, Access]:
    """Returns the rule of each method of the service (its full name), by the method's name.

    Raises ValueError for a method without a rule, KeyError for an unknown service.
    """
    methods = descriptor_pool.Default().FindServiceByName(service).methods
    return {
        method.name: replace(_rule(method.full_name, method.GetOptions()), audited_fields=_audited(method.input_type))
        for method in methods
    }


def _audited(request: Descriptor) -> tuple[str, ...]:
    return tuple(field.name for field in request.fields if field.GetOptions().Extensions[rule_pb2.rule].audited)


def _rule(method: str, options: object) -> Access:
    stated = options.Extensions[access_pb2.access]  # type: ignore[attr-defined]  # MethodOptions of the descriptor
    roles = frozenset(ROLES.to_domain(role) for role in stated.roles)
    permission = PERMISSIONS.to_domain(stated.permission) if stated.permission else None
    if not roles and permission is None:
        raise ValueError(f"{method} has no access rule: add `option (access)` to the method in protos/")
    return Access(
        roles,
        permission,
        stated.token_required,
        stated.audited,
        stated.long_poll,
    )
