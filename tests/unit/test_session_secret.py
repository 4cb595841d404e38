"""Who may attach a session again, and how a gateway recognises its worker."""

from __future__ import annotations

import pytest

from tenure.domain.errors import PermissionDenied
from tenure.domain.fencing import SessionOwner, holder_proof, is_proof, proof_digest, secret_digest

SECRET, OTHER = b"s" * 32, b"o" * 32
BOUND = SessionOwner("spiffe://tenure/worker/w", secret_digest(SECRET))


@pytest.mark.parametrize(
    "caller",
    [
        SessionOwner("spiffe://tenure/worker/w", secret_digest(OTHER)),
        SessionOwner("spiffe://tenure/worker/w", ""),
        SessionOwner("spiffe://tenure/worker/w-1", secret_digest(SECRET)),
        SessionOwner("", secret_digest(SECRET)),
        SessionOwner("", ""),
    ],
)
def test_another_caller_is_not_the_owner(caller: SessionOwner) -> None:
    with pytest.raises(PermissionDenied) as refused:
        BOUND.check(caller)
    assert refused.value.reason == "OTHER_HOLDER"
    assert BOUND.secret_digest not in str(refused.value)


def test_the_owner_passes() -> None:
    BOUND.check(BOUND)


def test_a_session_opened_without_tls_is_attached_with_tls() -> None:
    SessionOwner("", secret_digest(SECRET)).check(BOUND)


def test_a_session_without_a_digest_is_refused() -> None:
    with pytest.raises(PermissionDenied):
        SessionOwner("", "").check(BOUND)


def test_no_digest_reveals_another() -> None:
    """The coordinator's digest proves nothing to a gateway, and the proof attaches no session."""
    proof = holder_proof(SECRET)
    assert is_proof(proof, bytes.fromhex(proof_digest(SECRET)))
    assert not is_proof(holder_proof(OTHER), bytes.fromhex(proof_digest(SECRET)))
    assert not is_proof(bytes.fromhex(proof_digest(SECRET)), bytes.fromhex(proof_digest(SECRET)))
    assert secret_digest(proof) != secret_digest(SECRET)
    assert len({SECRET.hex(), secret_digest(SECRET), proof.hex(), proof_digest(SECRET)}) == 4
