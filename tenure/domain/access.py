"""Decides who may call a method: identities, permissions, and the access rule of each method.

The rules themselves are in the contract (`option (access)`), read by tenure/wire/access.py.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from tenure.domain.errors import PermissionDenied, Unauthenticated

DEFAULT_INSTALLATION: Final = "tenure"
"""The trust domain in the SPIFFE IDs of an installation that chose no name."""
TENANT_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")
"""The name of a tenant: a full match."""


class Role(StrEnum):
    """The roles of the processes of an installation."""

    GATEWAY = "GATEWAY"
    COORDINATOR = "COORDINATOR"
    WORKER = "WORKER"
    CHECKPOINT = "CHECKPOINT"
    TOOLS = "TOOLS"
    OPERATOR = "OPERATOR"
    MODELS = "MODELS"


class Permission(StrEnum):
    """The permissions of a client."""

    READ = "READ"
    WRITE = "WRITE"
    APPROVE = "APPROVE"
    TENANT_ADMIN = "TENANT_ADMIN"
    OPERATE = "OPERATE"


_INCLUDED: Final = {
    Permission.READ: (),
    Permission.WRITE: (Permission.READ,),
    Permission.APPROVE: (Permission.READ,),
    Permission.TENANT_ADMIN: (Permission.READ, Permission.WRITE, Permission.APPROVE),
    Permission.OPERATE: tuple(Permission),
}


def with_included(granted: Iterable[Permission]) -> frozenset[Permission]:
    """Returns the permissions with those that they include."""
    granted = set(granted)
    return frozenset(granted.union(*(_INCLUDED[permission] for permission in granted)))


@dataclass(frozen=True, slots=True)
class Access:
    """The access rule of a method.

    `roles`: the processes that may call it. `permission`: the one that a client needs; None: no client may call it.
    `needs_token`: the request carries a fencing token. `is_audited`: calls are recorded in the audit log.
    `is_long_poll`: the answer may come only after minutes. `audited_fields`: calls with one of them are recorded, too.
    """

    roles: frozenset[Role] = frozenset()
    permission: Permission | None = None
    needs_token: bool = False
    is_audited: bool = False
    is_long_poll: bool = False
    audited_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `name`: the SPIFFE ID of a process, or the subject of a client. `role`: of a process, else None. `tenant`: the only
    tenant of a client; None: any. `permissions`: those of a client, with the included ones.
    """

    name: str
    role: Role | None = None
    permissions: frozenset[Permission] = frozenset()
    tenant: str | None = None


EVERYTHING: Final = frozenset(Permission)

_NAME: Final = r"[a-zA-Z0-9._-]{1,128}"
_SPIFFE_ID: Final = re.compile(rf"spiffe://(?P<installation>{_NAME})/(?P<role>[a-z]+)/(?P<name>{_NAME})")


def spiffe_id(installation: str, role: Role, name: str) -> str:
    """Returns the identity of a process, as its certificate has it. Raises ValueError for an unusable name."""
    identity = f"spiffe://{installation}/{role.lower()}/{name}"
    if _SPIFFE_ID.fullmatch(identity) is None:
        raise ValueError(f"{identity!r} is not an identity: names have 1 to 128 letters, digits, dots, _ and -")
    return identity


def server_name(installation: str, role: Role) -> str:
    """Returns the DNS name that the certificate of each server of a role has: its clients verify it."""
    return f"{role.lower()}.{installation}"


def process_of(identities: Iterable[str], installation: str) -> Principal:
    """Returns the process with these identities (the URI names of its certificate). Raises Unauthenticated."""
    uris = list(identities)
    if len(uris) != 1:  # the SPIFFE standard: a certificate has exactly one
        raise Unauthenticated(
            f"the certificate of the caller has {len(uris)} URI names; it needs exactly one, spiffe://{installation}/"
            "<role>/<name>",
            reason="NO_IDENTITY",
        )
    match = _SPIFFE_ID.fullmatch(uris[0])
    role = None if match is None else Role.__members__.get(match["role"].upper())
    if match is None or role is None:
        raise Unauthenticated(
            f"the identity of the caller is not spiffe://{installation}/<role>/<name> with a known role",
            reason="NO_IDENTITY",
        )
    if match["installation"] != installation:
        raise Unauthenticated(
            f"the caller belongs to the installation {match['installation']}, this one is {installation}",
            reason="OTHER_INSTALLATION",
        )
    permissions = EVERYTHING if role is Role.OPERATOR else frozenset()
    return Principal(uris[0], role, permissions)


def check_access(access: Access, principal: Principal, named_tenant: str | None, default_tenant: str) -> str:
    """Returns the tenant of a call. Raises PermissionDenied unless the principal may call the method for it.

    `named_tenant`: the tenant that the request names, or None.
    """
    if principal.role not in access.roles and access.permission not in principal.permissions:
        raise PermissionDenied(
            f"{principal.name} may not call this method: {_needed(access)}", reason="METHOD_NOT_ALLOWED"
        )
    if principal.tenant is None:
        return default_tenant if named_tenant is None else named_tenant
    if named_tenant not in {None, principal.tenant}:
        raise PermissionDenied(
            f"{principal.name} belongs to the tenant {principal.tenant} and may not act for another one",
            reason="OTHER_TENANT",
        )
    return principal.tenant


COORDINATOR_HOLDERS: Final = "coordinator/"


def certificate_name(spiffe_id: str) -> str:
    """Returns the name of the process with this SPIFFE ID; "" for "", an unauthenticated process."""
    return spiffe_id.rpartition("/")[2]


def names_for(holder: str) -> frozenset[str]:
    """Returns the names with one of which a worker's certificate lets it hold tasks as `holder`."""
    return frozenset({holder, *(holder[: dash.start()] for dash in re.finditer("-", holder))})


def check_holder(principal: Principal, holder: str) -> None:
    """Raises PermissionDenied for a worker or coordinator that presents a token, or opens a session, of another holder.

    A worker holds under the name in its certificate, or under that name with "-" and more: a pool of workers with names
    of their own may share a certificate.
    """
    if principal.role is Role.WORKER:
        is_own = certificate_name(principal.name) in names_for(holder)
    else:
        is_own = principal.role is not Role.COORDINATOR or holder.startswith(COORDINATOR_HOLDERS)
    if not is_own:
        message = f"{principal.name} cannot act as the holder {holder}"
        raise PermissionDenied(message, reason="OTHER_HOLDER", metadata={"holder": holder})


def check_permission(principal: Principal, permission: Permission, purpose: str) -> None:
    """Raises PermissionDenied for a client without a permission that only some requests of a method need."""
    if permission not in principal.permissions:
        raise PermissionDenied(
            f"{principal.name} needs the permission {permission} {purpose}", reason="METHOD_NOT_ALLOWED"
        )


def _needed(access: Access) -> str:
    roles = " or ".join(sorted(role.lower() for role in access.roles))
    needs = [f"the permission {access.permission}"] * (access.permission is not None)
    return f"it needs {' or '.join([*needs, *([f'a certificate of the role {roles}'] if roles else [])])}"


# API keys: tnr_<key id>_<secret>. The ledger stores the SHA-256 of the whole key; 256 random bits need no salt and no
# slow hash.

API_KEY_PREFIX: Final = "tnr_"
_KEY_ID: Final = re.compile(r"[a-z0-9]{12}")
_API_KEY: Final = re.compile(r"tnr_(?P<key_id>[a-z0-9]{12})_[A-Za-z0-9_-]{43}")
_ID_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ApiKeyText:
    """A key as a client sends it. `repr` has no secret."""

    key_id: str
    digest: bytes


def is_key_id(text: str) -> bool:
    """Returns whether the text is the public part of a key."""
    return _KEY_ID.fullmatch(text) is not None


def make_api_key(random_id: bytes, random_secret: bytes) -> str:
    """Returns a new key from 12 and 32 random bytes."""
    key_id = "".join(_ID_DIGITS[byte % len(_ID_DIGITS)] for byte in random_id)
    return f"tnr_{key_id}_{base64.urlsafe_b64encode(random_secret).decode().rstrip('=')}"


def read_api_key(text: str) -> ApiKeyText | None:
    """Returns the public part and the digest of a key, or None for a text that is not a key."""
    match = _API_KEY.fullmatch(text)
    return ApiKeyText(match["key_id"], sha256(text.encode()).digest()) if match else None


@dataclass(frozen=True, slots=True)
class StoredApiKey:
    """A key in the ledger. `tenant` None: every tenant. `is_valid`: neither revoked nor expired."""

    key_id: str
    name: str
    tenant: str | None
    permissions: frozenset[Permission]
    digest: bytes
    is_valid: bool

    def principal(self) -> Principal:
        """Returns the client that the key stands for. The id in its name tells two keys of one name apart."""
        return Principal(f"key/{self.key_id}", None, with_included(self.permissions), self.tenant)


def verify_api_key(presented: ApiKeyText, stored: StoredApiKey | None) -> Principal:
    """Returns the client. Raises the same Unauthenticated for an unknown, a wrong, a revoked and an expired key."""
    digest = stored.digest if stored is not None else bytes(32)
    is_equal = hmac.compare_digest(presented.digest, digest)
    if stored is None or not is_equal or not stored.is_valid:
        raise Unauthenticated("the API key is unknown, revoked or expired", reason="API_KEY_INVALID")
    return stored.principal()


def check_new_key(creator: Principal, permissions: Iterable[Permission], *, any_tenant: bool) -> None:
    """Raises PermissionDenied for a key that may do more than its creator."""
    more = sorted(set(permissions) - creator.permissions)
    if more or (any_tenant and creator.tenant is not None):
        what = f"the permission {', '.join(more)}" if more else "access to every tenant"
        raise PermissionDenied(
            f"{creator.name} does not have {what} and cannot give it to a key", reason="METHOD_NOT_ALLOWED"
        )
