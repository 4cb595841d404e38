"""Decides who a client is by the claims of a verified JSON Web Token: its name, its tenant and its permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tenure.domain.access import TENANT_NAME, Permission, Principal, with_included
from tenure.domain.errors import Unauthenticated

MAX_SUBJECT: Final = 195
"""So that `user/` and the subject fit into an actor of 200 characters, which each entry of the caller has."""
"""Characters, as OpenID Connect has it."""


@dataclass(frozen=True, slots=True)
class ClaimMapping:
    """The rules by which the claims of an identity token become a client.

    `tenant_claim`, `permission_claim`: names of claims, or paths with dots into nested claims (realm_access.roles).
    `permissions`: the permission that each value of the permission claim stands for.
    """

    tenant_claim: str
    permission_claim: str
    permissions: Mapping[str, Permission]


def client_of(claims: Mapping[str, Any], mapping: ClaimMapping) -> Principal:
    """Returns the client. Raises Unauthenticated for claims that name no subject, or no tenant.

    A token without a tenant is for operators: it needs the permission OPERATE, and acts for every tenant.
    """
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.isprintable() or not 0 < len(subject) <= MAX_SUBJECT:
        _refuse(f"the claim sub must be a text of 1 to {MAX_SUBJECT} printable characters")
    values = _texts(_find(claims, mapping.permission_claim), mapping.permission_claim)
    permissions = with_included(mapping.permissions[value] for value in values if value in mapping.permissions)
    tenant = _find(claims, mapping.tenant_claim)
    if tenant is None and Permission.OPERATE in permissions:
        return Principal(f"user/{subject}", None, permissions)
    if not isinstance(tenant, str) or TENANT_NAME.fullmatch(tenant) is None:
        _refuse(f"the claim {mapping.tenant_claim} must name a tenant (1 to 63 characters of a-z, 0-9 and -)")
    return Principal(f"user/{subject}", None, permissions, tenant)


def _find(claims: Mapping[str, Any], path: str) -> Any:
    """Returns the claim of that name, or at that path; None: there is none. Names may have dots: URLs do."""
    if path in claims:
        return claims[path]
    first, dot, rest = path.partition(".")
    inner = claims.get(first)
    return _find(inner, rest) if dot and isinstance(inner, Mapping) else None


def _texts(claim: Any, name: str) -> list[str]:
    """Returns the values of a claim: a text with spaces between them (OAuth's scope), or a list of texts."""
    if claim is None:
        return []
    if isinstance(claim, str):
        return claim.split()
    if not isinstance(claim, list) or not all(isinstance(value, str) for value in claim):
        _refuse(f"the claim {name} must be a text or a list of texts")
    return list(claim)


def _refuse(why: str) -> NoReturn:
    raise Unauthenticated(f"the token names no client: {why}", reason="TOKEN_INVALID")
