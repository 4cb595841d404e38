"""Signs the claims of fencing tokens, and reads and checks tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from google.protobuf.message import DecodeError

from tenure.domain.access import DEFAULT_INSTALLATION, check_holder
from tenure.domain.effect_keys import TaskScopes
from tenure.domain.errors import PermissionDenied, Unauthenticated
from tenure.domain.fencing import Audience, Claims
from tenure.runtime.security.access_control import current_principal
from tenure.runtime.security.signing import DigestCache, SignedBytes, Signer, Verifier
from tenure.v1 import token_pb2
from tenure.wire import call_plans, task  # noqa: F401  plans and the allowlist are parts of the claims
from tenure.wire.codec import pair
from tenure.wire.common import EnumMap, timestamp

AUDIENCES = EnumMap(Audience, dict(token_pb2.TokenAudience.items()), "TOKEN_AUDIENCE", None)
scopes_to_wire, scopes_to_domain = pair(TaskScopes, token_pb2.TaskScopes)
_claims_to_wire, _claims_to_domain = pair(
    Claims, token_pb2.TokenClaims, convert={"audiences": (AUDIENCES.to_wire, AUDIENCES.find)}, skip="issue_time"
)


def sign_claims(signer: Signer, claims: Claims, issued_at: datetime) -> token_pb2.FencingToken:
    """Returns a signed token for a registered claim."""
    message = _claims_to_wire(claims)
    message.issue_time.CopyFrom(timestamp(issued_at))
    signed = signer.sign(message.SerializeToString())
    return token_pb2.FencingToken(claims=signed.claims, key_id=signed.key_id, signature=signed.signature)


def sign_task_claims(signer: Signer, claims: Claims, issued_at: datetime) -> token_pb2.FencingToken:
    """Returns the token of a task's claim: for the checkpoint service, the tool service and the model runner, with the
    one for tool providers in it.
    """
    token = sign_claims(
        signer, replace(claims, audiences=(Audience.CHECKPOINT, Audience.TOOLS, Audience.MODELS)), issued_at
    )
    for_providers = claims.without_task((Audience.PROVIDER,))
    token.provider_token.CopyFrom(sign_claims(signer, for_providers, issued_at))
    return token


def read_claims(token: token_pb2.FencingToken) -> Claims:
    """Returns the claims of a token without a check of its signature, for its holder. Services use `TokenChecker`."""
    try:
        message = token_pb2.TokenClaims.FromString(token.claims)
    except DecodeError as error:
        raise Unauthenticated("the fencing token's claims cannot be read", reason="INVALID_TOKEN") from error
    return _claims_to_domain(message)


@dataclass(frozen=True, slots=True)
class TokenChecker:
    """Checks the tokens that callers present to one service: signature, audience, installation and holder.

    `keeps_tools`: whether the claims have the names of the tools. The claims are kept, and every commit of a claim
    presents the same bytes, so a service that does not need the names saves memory.
    """

    verifier: Verifier
    audience: Audience
    installation: str = DEFAULT_INSTALLATION
    keeps_tools: bool = False
    _read: DigestCache[Claims] = field(default_factory=DigestCache)
    _provider_tokens: DigestCache[tuple[Claims, bytes]] = field(default_factory=DigestCache)

    def check(self, token: token_pb2.FencingToken) -> Claims:
        """Returns the claims of a token that the caller of the current request presents.

        Raises Unauthenticated (INVALID_TOKEN) for a bad signature, PermissionDenied (WRONG_AUDIENCE) for a token of
        another service or installation, and PermissionDenied (OTHER_HOLDER) for a token of another holder.
        """
        digest = self.verifier.check(SignedBytes(token.claims, token.key_id, token.signature))
        claims = self._read.get(digest)
        if claims is None:
            claims = read_claims(token)
            claims.check_audience(self.audience, self.installation)
            claims = claims if self.keeps_tools else claims.without_task(claims.audiences)
            self._read.put(digest, claims)
        check_holder(current_principal(), claims.holder)
        return claims

    def provider_token(self, token: token_pb2.FencingToken, claims: Claims) -> bytes:
        """Returns the serialized token for tool providers, b"" if there is none.

        Raises Unauthenticated (INVALID_TOKEN), and PermissionDenied (WRONG_AUDIENCE) unless it is of the same claim.
        """
        if not token.HasField("provider_token"):
            return b""
        theirs = token.provider_token
        digest = self.verifier.check(SignedBytes(theirs.claims, theirs.key_id, theirs.signature))
        known = self._provider_tokens.get(digest)
        if known is not None and known[0] == claims:
            return known[1]
        if read_claims(theirs) != claims.without_task((Audience.PROVIDER,)):
            message = "the token for tool providers is not of the claim that the call is made under"
            raise PermissionDenied(message, reason="WRONG_AUDIENCE")
        only = token_pb2.FencingToken(claims=theirs.claims, key_id=theirs.key_id, signature=theirs.signature)
        serialized = only.SerializeToString()
        self._provider_tokens.put(digest, (claims, serialized))
        return serialized
