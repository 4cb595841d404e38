"""Checks the requests of ApiKeyService."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.access import is_key_id
from tenure.v1 import access_pb2
from tenure.v1 import api_key_service_pb2 as keys
from tenure.validators.common import Check
from tenure.validators.rules import Violations
from tenure.wire.access import PERMISSIONS

DIGEST_BYTES: Final = 32


def _create(request: keys.CreateApiKeyRequest, v: Violations) -> None:
    are_known = all(PERMISSIONS.find(permission) is not None for permission in request.permissions)
    v.require(are_known, "permissions", "must be permissions of this version of the API")
    operates = access_pb2.PERMISSION_OPERATE in request.permissions
    v.require(
        operates or not request.any_tenant, "permissions", "must contain PERMISSION_OPERATE in a key for every tenant"
    )
    v.require(not request.key_id or is_key_id(request.key_id), "key_id", "is set by the gateway")
    v.require(len(request.digest) in {0, DIGEST_BYTES}, "digest", "is set by the gateway")


def _key(request: Any, v: Violations) -> None:
    v.require(is_key_id(request.key_id), "key_id", "must be the 12 characters after tnr_ of a key")


CHECKS: Final[dict[type[Any], Check]] = {
    keys.CreateApiKeyRequest: _create,
    keys.RevokeApiKeyRequest: _key,
    keys.LookUpApiKeyRequest: _key,
}
