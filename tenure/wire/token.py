"""Signs the claims of fencing tokens, and reads and checks tokens."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.message import DecodeError

from tenure.domain.errors import Unauthenticated
from tenure.domain.fencing import Claims
from tenure.runtime.signing import SignedBytes, Signer, Verifier
from tenure.v1 import token_pb2
from tenure.wire.common import timestamp
from tenure.wire.task import allowlist_to_wire


def sign_claims(signer: Signer, claims: Claims, issued_at: datetime) -> token_pb2.FencingToken:
    """Returns a signed token for a registered claim."""
    message = token_pb2.TokenClaims(
        resource=claims.resource,
        tenant=claims.tenant,
        epoch=claims.epoch,
        claim_id=claims.claim_id,
        holder=claims.holder,
        tools=allowlist_to_wire(claims.tools),
        issue_time=timestamp(issued_at),
    )
    signed = signer.sign(message.SerializeToString())
    return token_pb2.FencingToken(claims=signed.claims, key_id=signed.key_id, signature=signed.signature)


def read_claims(token: token_pb2.FencingToken) -> Claims:
    """Returns the claims of a token without a check of its signature, for its holder. Services use `check_token`."""
    try:
        message = token_pb2.TokenClaims.FromString(token.claims)
    except DecodeError as error:
        raise Unauthenticated("the fencing token's claims cannot be read", reason="INVALID_TOKEN") from error
    return Claims(
        resource=message.resource,
        tenant=message.tenant,
        epoch=message.epoch,
        claim_id=message.claim_id,
        holder=message.holder,
        tools=tuple(message.tools.names) if message.HasField("tools") else None,
    )


def check_token(verifier: Verifier, token: token_pb2.FencingToken) -> Claims:
    """Returns the claims of a token. Raises Unauthenticated (INVALID_TOKEN) for a bad signature."""
    verifier.check(SignedBytes(token.claims, token.key_id, token.signature))
    return read_claims(token)
