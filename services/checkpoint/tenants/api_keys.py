"""ApiKeyService, as far as the ledger serves it: stores the keys of clients. The gateway makes and verifies them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from services.checkpoint.columns import Unlisted, select_list
from services.checkpoint.queries import fetch_all, fetch_one, ledger_transaction
from tenure.domain.access import Permission, is_key_id, make_api_key, read_api_key
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound
from tenure.runtime.request_context import current_tenant
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.runtime.store.sql import Queries
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1.api_key_service_pb2_grpc import ApiKeyServiceServicer
from tenure.wire.access import PERMISSIONS
from tenure.wire.codec import writer
from tenure.wire.common import moment

EVERY_TENANT: Final = ""
"""The tenant of a key that may act for any."""
MAX_KEYS: Final = 1000
DEFAULT_KEYS: Final = 100


class ApiKeyRow(NamedTuple):
    """A key. `is_valid`: neither revoked nor expired."""

    key_id: str
    tenant: str
    name: str
    permissions: list[str]
    creator: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    digest: bytes
    is_valid: Unlisted[bool]

    def message(self) -> pb.ApiKey:
        """Returns the key without its digest."""
        return _key_to_wire(self)


_key_to_wire = writer(ApiKeyRow, pb.ApiKey, rename={"expires_at": "expire_time"}, skip="digest is_valid")


API_KEYS: Final = Queries.load("services.checkpoint", "sql/api_keys.sql", {"api_key": select_list(ApiKeyRow, "k")})


@ledger_transaction
async def create_key(connection: Connection, tenant: str, request: pb.CreateApiKeyRequest) -> pb.ApiKey:
    """Stores a key, or returns it for a repeat.

    Raises LimitReached (TOO_MANY_API_KEYS), AlreadyExists (API_KEY_EXISTS), InvalidRequest (expire_time).
    """
    expires_at = moment(request.expire_time) if request.HasField("expire_time") else None
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise InvalidRequest(violations=[("expire_time", "must be in the future")])
    permissions = sorted({PERMISSIONS.to_domain(permission) for permission in request.permissions})
    await connection.execute(API_KEYS.lock_tenant, {"tenant": tenant})
    if await _find(connection, request.key_id) is None:
        await _check_room(connection, tenant)
    parameters = {
        "key_id": request.key_id,
        "tenant": tenant,
        "name": request.name,
        "permissions": [permission.value for permission in permissions],
        "digest": request.digest,
        "creator": request.actor,
        "expires_at": expires_at,
    }
    await connection.execute(API_KEYS.create, parameters)
    row = await _read(connection, request.key_id)
    if row.digest != request.digest:
        raise AlreadyExists(f"there is another key {request.key_id}", reason="API_KEY_EXISTS")
    return row.message()


async def create_operator_key(pool: Pool) -> str:
    """Stores a new key of an operator and returns it, for an installation that has no key yet."""
    key = make_api_key(os.urandom(12), os.urandom(32))
    text = read_api_key(key)
    assert text is not None, "made just now"
    request = pb.CreateApiKeyRequest(
        name="operator",
        permissions=[PERMISSIONS.to_wire(Permission.OPERATE)],
        actor="checkpoint operator-key",
        key_id=text.key_id,
        digest=text.digest,
    )
    await create_key(pool, EVERY_TENANT, request)
    return key


async def list_keys(pool: Pool, tenant: str | None, request: pb.ListApiKeysRequest) -> pb.ListApiKeysResponse:
    """Returns a page of the keys of a tenant (None: of all), newest first.

    The token is the time and the id of the last key. Raises InvalidRequest for a token of no earlier answer.
    """
    page_size = request.page_size or DEFAULT_KEYS
    before, before_id = _position(request.page_token)
    parameters: dict[str, Any] = {
        "all": request.all,
        "before": before,
        "before_id": before_id,
        "limit": page_size + 1,
    }
    statement = API_KEYS.list
    if tenant is not None:
        statement, parameters["tenant"] = API_KEYS.list_of_tenant, tenant
    async with pool_connection(pool) as connection:
        rows = [ApiKeyRow(*columns) for columns in await fetch_all(connection, statement, parameters)]
    page = rows[:page_size]
    token = f"{page[-1].created_at.astimezone(UTC).isoformat()} {page[-1].key_id}" if len(rows) > page_size else ""
    return pb.ListApiKeysResponse(api_keys=[row.message() for row in page], next_page_token=token)


@ledger_transaction
async def revoke_key(connection: Connection, tenant: str | None, request: pb.RevokeApiKeyRequest) -> pb.ApiKey:
    """Revokes a key of the tenant, or of any tenant (None). Raises NotFound."""
    row = await _read(connection, request.key_id)
    if tenant is not None and row.tenant != tenant:
        raise _not_found(request.key_id)
    await connection.execute(API_KEYS.revoke, {"key_id": request.key_id, "actor": request.actor})
    return (await _read(connection, request.key_id)).message()


async def look_up_key(pool: Pool, key_id: str) -> pb.LookUpApiKeyResponse:
    """Returns a key with its digest. Raises NotFound."""
    async with pool_connection(pool) as connection:
        row = await _read(connection, key_id)
    return pb.LookUpApiKeyResponse(api_key=row.message(), digest=row.digest, valid=row.is_valid)


async def _find(connection: Connection, key_id: str) -> ApiKeyRow | None:
    columns = await fetch_one(connection, API_KEYS.read, {"key_id": key_id})
    return None if columns is None else ApiKeyRow(*columns)


async def _read(connection: Connection, key_id: str) -> ApiKeyRow:
    row = await _find(connection, key_id)
    if row is None:
        raise _not_found(key_id)
    return row


def _not_found(key_id: str) -> NotFound:
    return NotFound(f"API key {key_id} not found", reason="API_KEY_NOT_FOUND")


async def _check_room(connection: Connection, tenant: str) -> None:
    row = await fetch_one(connection, API_KEYS.count, {"tenant": tenant})
    if row is not None and row[0] >= MAX_KEYS:
        raise LimitReached(f"there are {row[0]} API keys already: revoke some", reason="TOO_MANY_API_KEYS")


def _position(token: str) -> tuple[datetime | None, str]:
    if not token:
        return None, ""
    created_at, _, key_id = token.partition(" ")
    try:
        before = datetime.fromisoformat(created_at)
    except ValueError:
        before = None
    if before is None or before.tzinfo is None or not is_key_id(key_id):
        message = "is not a token of this service: use next_page_token of the last response"
        raise InvalidRequest(violations=[("page_token", message)])
    return before, key_id


class ApiKeyServicer(ApiKeyServiceServicer):
    """See protos/tenure/v1/api_key_service.proto. The gateway has checked what the caller may do."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, _context: Any) -> pb.CreateApiKeyResponse:
        tenant = EVERY_TENANT if request.any_tenant else current_tenant()
        return pb.CreateApiKeyResponse(api_key=await create_key(self._pool, tenant, request))

    async def ListApiKeys(self, request: pb.ListApiKeysRequest, _context: Any) -> pb.ListApiKeysResponse:
        return await list_keys(self._pool, None if request.all_tenants else current_tenant(), request)

    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, _context: Any) -> pb.RevokeApiKeyResponse:
        tenant = None if request.all_tenants else current_tenant()
        return pb.RevokeApiKeyResponse(api_key=await revoke_key(self._pool, tenant, request))

    async def LookUpApiKey(self, request: pb.LookUpApiKeyRequest, _context: Any) -> pb.LookUpApiKeyResponse:
        return await look_up_key(self._pool, request.key_id)
