"""Checks the requests of ApiKeyService, at the checkpoint service and at the gateway."""

from __future__ import annotations

from typing import Any, Final

from tenure.domain.access import is_key_id
from tenure.v1 import api_key_service_pb2 as keys
from tenure.validators.common import Check, Violations
from tenure.wire.access import PERMISSIONS

DIGEST_BYTES: Final = 32
MAX_TOKEN: Final = 64
MAX_PERMISSIONS: Final = 5


def _create(request: keys.CreateApiKeyRequest, v: Violations) -> None:
    v.length("name", request.name, 1, 200)
    v.between("permissions", len(request.permissions), 1, MAX_PERMISSIONS)
    are_known = all(PERMISSIONS.find(permission) is not None for permission in request.permissions)
    v.require(are_known, "permissions", "must be permissions of this version of the API")
    v.length("actor", request.actor, 0, 200)
    v.require(not request.key_id or is_key_id(request.key_id), "key_id", "is set by the gateway")
    v.require(len(request.digest) in {0, DIGEST_BYTES}, "digest", "is set by the gateway")


def _list(request: keys.ListApiKeysRequest, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 500)
    v.length("page_token", request.page_token, 0, MAX_TOKEN)


def _key(request: Any, v: Violations) -> None:
    v.require(is_key_id(request.key_id), "key_id", "must be the 12 characters after tnr_ of a key")


CHECKS: Final[dict[type[Any], Check]] = {
    keys.CreateApiKeyRequest: _create,
    keys.ListApiKeysRequest: _list,
    keys.RevokeApiKeyRequest: _key,
    keys.LookUpApiKeyRequest: _key,
}
