"""Laws of a guard outside: which keys it believes, and which writes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from tenure.client.verification import TokenVerifier, raise_fence
from tenure.domain.errors import LimitReached, StaleEpoch, Unauthenticated, Unavailable
from tenure.domain.fencing import Audience, Claims, Fence
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.signing import Signer, write_key_pair
from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.token import sign_claims

CLAIMS = Claims("leases/a", "default", 5, "c", "one", audiences=(Audience.LEASE,))


class Keys:
    """A LeaseService of which only the keys are asked."""

    def __init__(self) -> None:
        self.known: list[Signer] = []
        self.request_count = 0
        self.failure: Exception | None = None

    async def ListSigningKeys(self, _request: pb.ListSigningKeysRequest, timeout: float) -> pb.ListSigningKeysResponse:
        assert timeout > 0
        self.request_count += 1
        if self.failure is not None:
            raise self.failure
        keys = [pb.SigningKey(key_id=one.key_id, public_key=one.public_key_bytes()) for one in self.known]
        return pb.ListSigningKeysResponse(keys=keys)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    write_key_pair(tmp_path / "k.json", tmp_path / "v.json", "k1")
    return Signer.load(tmp_path / "k.json")


def token_of(signer: Signer) -> Any:
    return sign_claims(signer, CLAIMS, datetime.now(UTC))


async def test_known_key_is_not_fetched_again(signer: Signer) -> None:
    keys = Keys()
    keys.known = [signer]
    verifier = TokenVerifier(cast("Any", keys))
    for _ in range(3):
        assert await verifier.verify(token_of(signer), resource="leases/a") == CLAIMS
    assert keys.request_count == 1


async def test_fetches_of_unknown_keys_are_limited(signer: Signer) -> None:
    keys = Keys()
    verifier = TokenVerifier(cast("Any", keys))
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await verifier.verify(token_of(signer), resource="leases/a")
    assert keys.request_count == 1


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("nobody answers"),
        LimitReached("too many calls"),
        Unauthenticated("the client's own key was revoked"),
        PeerFailed(grpc.StatusCode.INTERNAL, "a bug"),
    ],
)
async def test_known_keys_verify_while_the_fetch_fails(signer: Signer, failure: Exception) -> None:
    keys = Keys()
    keys.known = [signer]
    verifier = TokenVerifier(cast("Any", keys), refresh_seconds=0.0)
    await verifier.verify(token_of(signer), resource="leases/a")
    keys.failure = failure
    assert await verifier.verify(token_of(signer), resource="leases/a") == CLAIMS
    with pytest.raises(Unavailable):
        await TokenVerifier(cast("Any", keys)).verify(token_of(signer), resource="leases/a")


async def test_a_fetch_that_fails_is_not_repeated_with_every_forgery(signer: Signer) -> None:
    keys = Keys()
    keys.failure = Unavailable("nobody answers")
    verifier = TokenVerifier(cast("Any", keys))
    for _ in range(5):
        with pytest.raises(Unavailable):
            await verifier.verify(token_of(signer), resource="leases/a")
    assert keys.request_count == 1


@pytest.mark.parametrize(
    ("current", "presented"),
    [(None, Fence(1, "a")), (Fence(1, "a"), Fence(2, "b")), (Fence(2, "b"), Fence(2, "b"))],
    ids=["the first", "a higher one", "the same one"],
)
def test_a_fence_lets_in_who_is_not_stale(current: Any, presented: Any) -> None:
    assert raise_fence(current, presented) == presented


@pytest.mark.parametrize("presented", [Fence(1, "a"), Fence(2, "c")], ids=["a lower one", "the number of another"])
def test_a_fence_refuses_who_is_stale(presented: Any) -> None:
    with pytest.raises(StaleEpoch) as refused:
        raise_fence(Fence(2, "b"), presented)
    assert (refused.value.presented, refused.value.current) == (presented.epoch, 2)
