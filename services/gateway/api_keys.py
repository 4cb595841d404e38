"""API keys at the gateway: verifies the key of each call, and serves ApiKeyService to clients."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from services.gateway.forwarder import Forwarder
from services.gateway.peers import Peers, with_retries
from tenure.domain.access import (
    Principal,
    StoredApiKey,
    check_new_key,
    make_api_key,
    read_api_key,
    verify_api_key,
)
from tenure.domain.errors import NotFound, Unauthenticated
from tenure.runtime.rpc.call_limiter import CallQueue
from tenure.runtime.security.access_control import current_principal
from tenure.v1 import api_key_service_pb2 as pb
from tenure.wire.access import PERMISSIONS, stored_key

_Value = TypeVar("_Value")
FRESH_SECONDS: Final = 2.0
"""How long a key that was read is used without another read: shorter than the 5 s in which a revocation must count."""
MAX_KNOWN: Final = 10_000
MAX_UNKNOWN: Final = 1000
MAX_LOOK_UPS: Final = 8
"""Reads at once of keys of which the gateway does not know that they exist; half of them for one address.

Anybody can send such keys, and each costs a query of the ledger, whose connections all tenants share.
"""


class ApiKeys:
    """Verifies keys. Reads each key from the ledger, and again after `FRESH_SECONDS`; calls share a read.

    Calls with keys that may not exist wait, fairly between the addresses that they come from.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._known: OrderedDict[str, tuple[float, StoredApiKey]] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()  # when the ledger had no such key
        self._reads: dict[str, asyncio.Task[StoredApiKey | None]] = {}
        self._look_ups = CallQueue("the look-up of unknown API keys", MAX_LOOK_UPS, MAX_LOOK_UPS // 2)

    async def authenticate(self, key: str, address: str) -> Principal:
        """Returns the client that the key stands for. `address`: where the call comes from.

        Raises Unauthenticated; Unavailable without the ledger; LimitReached for too many keys that may not exist.
        """
        presented = read_api_key(key)
        if presented is None:
            raise Unauthenticated("the authorization is not an API key of Tenure", reason="API_KEY_INVALID")
        return verify_api_key(presented, await self._read(presented.key_id, address))

    async def _read(self, key_id: str, address: str) -> StoredApiKey | None:
        read_at, stored = self._known.get(key_id, (self._unknown.get(key_id, -FRESH_SECONDS), None))
        if monotonic() - read_at < FRESH_SECONDS:
            return stored
        read = self._reads.get(key_id)
        if read is None:
            looking_up = self._look_up(key_id) if key_id in self._known else self._look_up_in_turn(key_id, address)
            read = self._reads[key_id] = asyncio.create_task(looking_up)
            read.add_done_callback(partial(self._read_ended, key_id))
        return await asyncio.shield(read)  # the other calls need it when this one is cancelled

    def _read_ended(self, key_id: str, read: asyncio.Task[StoredApiKey | None]) -> None:
        del self._reads[key_id]
        if not read.cancelled():
            read.exception()  # asyncio would log the error of a read whose calls were all cancelled

    async def _look_up_in_turn(self, key_id: str, address: str) -> StoredApiKey | None:
        await self._look_ups.take(address)
        try:
            return await self._look_up(key_id)
        finally:
            self._look_ups.give(address)

    async def _look_up(self, key_id: str) -> StoredApiKey | None:
        began = monotonic()
        request = pb.LookUpApiKeyRequest(key_id=key_id)
        try:
            stored = stored_key(await with_retries(lambda: self._peers.api_keys.LookUpApiKey(request)))
        except NotFound:
            self._known.pop(key_id, None)
            _keep(self._unknown, key_id, began, MAX_UNKNOWN)
            return None
        _keep(self._known, key_id, (began, stored), MAX_KNOWN)
        return stored


def _keep(kept: OrderedDict[str, _Value], key_id: str, value: _Value, most: int) -> None:
    """Stores the value as the newest one, and forgets the oldest one beyond `most`."""
    kept[key_id] = value
    kept.move_to_end(key_id)
    if len(kept) > most:
        kept.popitem(last=False)


class ApiKeyForwarder(Forwarder):
    """Makes the keys, so that the ledger never sees their secrets. Limits each caller to its own rights."""

    def __init__(self, peers: Peers) -> None:
        super().__init__("ApiKeyService", peers)

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, _context: Any) -> pb.CreateApiKeyResponse:
        """Creates a key. A repeat behind the gateway sends the same key."""
        permissions = {PERMISSIONS.to_domain(permission) for permission in request.permissions}
        check_new_key(current_principal(), permissions, any_tenant=request.any_tenant)
        key = make_api_key(os.urandom(12), os.urandom(32))
        text = read_api_key(key)
        assert text is not None, "made just now"
        forwarded_request = pb.CreateApiKeyRequest()
        forwarded_request.CopyFrom(request)
        forwarded_request.key_id, forwarded_request.digest = text.key_id, text.digest
        created = await with_retries(lambda: self._peers.api_keys.CreateApiKey(forwarded_request))
        return pb.CreateApiKeyResponse(api_key=created.api_key, secret=key)
