"""Verifies fencing tokens in a service that guards its own writes.

    verifier = TokenVerifier(client.leases)
    claims = await verifier.verify(token, resource="leases/tables/orders")
    …  # then compare claims.epoch and claims.claim_id with the stored fence, under a lock of the write: docs/tokens.md

A good signature proves that the lease was granted once. It does not prove that the lease is still held: a token never
expires. Only this comparison does, in the transaction that writes:

    no row, or claims.epoch > row.epoch          → store (epoch, claim_id), write
    (claims.epoch, claims.claim_id) == the row's → write
    anything else                                → refuse: a newer holder has written
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tenure.domain.errors import PermissionDenied, StaleEpoch, TenureError, Unauthenticated, Unavailable
from tenure.domain.fencing import LEASE_PREFIX, Audience, Claims, Fence
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.token import read_claims

if TYPE_CHECKING:
    from tenure.v1 import token_pb2
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub

REFRESH_SECONDS: Final = 60.0
UNKNOWN_KEY_SECONDS: Final = 1.0
_TIMEOUT_SECONDS: Final = 5.0


class TokenVerifier:
    """Verifies tokens with the public keys of the coordinators, which it keeps.

    It fetches the keys again for an unknown key, at most once a second, and every minute: a withdrawn key is
    accepted no longer than that. While the fetch fails, for whatever reason, the known keys stay valid.
    """

    def __init__(self, stub: LeaseServiceAsyncStub, *, refresh_seconds: float = REFRESH_SECONDS) -> None:
        self._stub, self._refresh_seconds = stub, refresh_seconds
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._fetched_at = float("-inf")
        self._failure: Exception | None = None
        self._fetching = asyncio.Lock()

    async def verify(self, token: token_pb2.FencingToken, *, resource: str, tenant: str = "default") -> Claims:
        """Verifies a token for `resource` ("leases/<name>" or "tasks/<id>") and returns its claims.

        Raises Unauthenticated (INVALID_TOKEN), PermissionDenied (WRONG_RESOURCE, or WRONG_AUDIENCE for a worker's own
        token), and Unavailable when the key is unknown and the keys cannot be fetched.
        """
        key = await self._key(token.key_id)
        try:
            key.verify(token.signature, token.claims)
        except InvalidSignature as error:
            raise Unauthenticated("the token's signature does not match its claims", reason="INVALID_TOKEN") from error
        claims = read_claims(token)
        if (claims.resource, claims.tenant) != (resource, tenant):
            raise PermissionDenied(
                f"the token is for {claims.resource} of tenant {claims.tenant}", reason="WRONG_RESOURCE"
            )
        audience = Audience.LEASE if resource.startswith(LEASE_PREFIX) else Audience.PROVIDER
        claims.check_audience(audience, claims.installation)
        return claims

    async def _key(self, key_id: str) -> Ed25519PublicKey:
        if self._age_seconds() >= (self._refresh_seconds if key_id in self._keys else UNKNOWN_KEY_SECONDS):
            await self._fetch_keys()
        if key_id in self._keys:
            return self._keys[key_id]
        if self._failure is not None:
            raise Unavailable(
                f"the key {key_id!r} is unknown, and the public keys cannot be fetched: {self._failure}"
            ) from self._failure
        raise Unauthenticated(f"the token is signed with an unknown key {key_id!r}", reason="INVALID_TOKEN")

    async def _fetch_keys(self) -> None:
        async with self._fetching:
            if self._age_seconds() < UNKNOWN_KEY_SECONDS:
                return
            try:
                answer = await self._stub.ListSigningKeys(pb.ListSigningKeysRequest(), timeout=_TIMEOUT_SECONDS)
            except (TenureError, PeerFailed) as error:
                self._failure = error
            else:
                self._failure = None
                self._keys = {key.key_id: Ed25519PublicKey.from_public_bytes(key.public_key) for key in answer.keys}
            self._fetched_at = monotonic()

    def _age_seconds(self) -> float:
        return monotonic() - self._fetched_at


def raise_fence(current: Fence | None, presented: Fence) -> Fence:
    """Returns the fence after a write under `presented`, by the comparison in the module's docstring.

    Read `current` under a lock that the write holds. Raises StaleEpoch for a presented fence that is not the newest.
    """
    if current is None or presented.epoch > current.epoch or presented == current:
        return presented
    raise StaleEpoch(presented=presented.epoch, current=current.epoch)
