"""Binds a session to the worker that opened it.

A session is opened under an identity (of the worker's certificate) and with a secret (of the worker's process). To
attach it again, a process needs both. The coordinator keeps digests, so a reader of etcd learns no secret. The proof
that a worker shows to gateways is a digest of the secret too: a gateway cannot attach the session with it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from tenure.domain.errors import PermissionDenied

MIN_BYTES: Final = 32
MAX_BYTES: Final = 64
_SESSION: Final = b"tenure session"
_LIVE_TEXT: Final = b"tenure live text"


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """The owner of a session, as etcd has it.

    `identity`: the SPIFFE ID, "" without TLS. `secret_digest`: hexadecimal.
    """

    identity: str
    secret_digest: str

    def check(self, caller: SessionOwner) -> None:
        """Raises PermissionDenied (OTHER_HOLDER) unless the caller is this owner.

        A session that was opened without TLS can be attached with TLS: its secret decides.
        """
        is_same_identity = self.identity in {"", caller.identity}
        is_same_secret = hmac.compare_digest(self.secret_digest, caller.secret_digest)
        if not (is_same_identity and is_same_secret):
            differs = "with another secret" if is_same_identity else f"by {self.identity}"
            raise PermissionDenied(
                f"the session was opened {differs}; attach without session_id to open a session of your own",
                reason="OTHER_HOLDER",
            )


def secret_digest(secret: bytes) -> str:
    """Returns the digest that the coordinator keeps of a secret."""
    return sha256(_SESSION + secret).hexdigest()


def holder_proof(secret: bytes) -> bytes:
    """Returns the proof with which the worker of a session begins its live text."""
    return sha256(_LIVE_TEXT + secret).digest()


def proof_digest(secret: bytes) -> str:
    """Returns the digest of the proof, by which gateways recognise it."""
    return sha256(holder_proof(secret)).hexdigest()


def is_proof(presented: bytes, digest: bytes) -> bool:
    """Whether the digest is that of the presented proof."""
    return hmac.compare_digest(sha256(presented).digest(), digest)
