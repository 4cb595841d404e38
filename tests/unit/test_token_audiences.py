"""The audiences of fencing tokens: what is signed for one service opens no other one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.errors import PermissionDenied, Unauthenticated
from tenure.domain.fencing import Audience, Claims
from tenure.runtime.security.signing import Signer, Verifier, write_key_pair
from tenure.v1 import token_pb2
from tenure.wire.token import TokenChecker, read_claims, sign_claims, sign_task_claims

CLAIMS = Claims("tasks/0b0e", "acme", 7, "c-1", "worker-1", ("a", "b"), installation="tenure")
NOW = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    write_key_pair(folder / "signing.json", folder / "verifying.json", "k1")
    return folder


@pytest.fixture(scope="module")
def signer(keys: Path) -> Signer:
    return Signer.load(keys / "signing.json")


@pytest.fixture(scope="module")
def verifier(keys: Path) -> Verifier:
    return Verifier(keys / "verifying.json")


@given(audiences=st.sets(st.sampled_from(Audience), min_size=1), asked=st.sampled_from(Audience))
def test_a_token_opens_exactly_its_audiences(
    signer: Signer, verifier: Verifier, audiences: set[Audience], asked: Audience
) -> None:
    token = sign_claims(signer, replace(CLAIMS, audiences=tuple(audiences)), NOW)
    checker = TokenChecker(verifier, asked)
    if asked in audiences:
        assert checker.check(token).fence == CLAIMS.fence
    else:
        with pytest.raises(PermissionDenied, match=str(asked)) as refused:
            checker.check(token)
        assert refused.value.reason == "WRONG_AUDIENCE"


def test_a_task_token_has_one_for_providers(signer: Signer, verifier: Verifier) -> None:
    token = sign_task_claims(signer, CLAIMS, NOW)
    tools = TokenChecker(verifier, Audience.TOOLS, keeps_tools=True)
    claims = tools.check(token)
    assert (claims.tools, TokenChecker(verifier, Audience.CHECKPOINT).check(token).tools) == (("a", "b"), None)
    theirs = token_pb2.FencingToken.FromString(tools.provider_token(token, claims))
    assert read_claims(theirs) == replace(CLAIMS, audiences=(Audience.PROVIDER,), tools=None)
    for audience in set(Audience) - {Audience.PROVIDER}:
        with pytest.raises(PermissionDenied):
            TokenChecker(verifier, audience).check(theirs)


@pytest.mark.parametrize("change", [{"epoch": 8}, {"resource": "tasks/1"}, {"tenant": "x"}, {"claim_id": "c-2"}])
def test_a_provider_token_of_another_claim_is_refused(
    signer: Signer, verifier: Verifier, change: dict[str, object]
) -> None:
    token = sign_task_claims(signer, CLAIMS, NOW)
    other = replace(CLAIMS, **change)  # type: ignore[arg-type]  # any of its fields
    token.provider_token.CopyFrom(sign_task_claims(signer, other, NOW).provider_token)
    tools = TokenChecker(verifier, Audience.TOOLS)
    with pytest.raises(PermissionDenied):
        tools.provider_token(token, tools.check(token))


def test_a_forged_provider_token_is_refused(signer: Signer, verifier: Verifier) -> None:
    token = sign_task_claims(signer, CLAIMS, NOW)
    tools = TokenChecker(verifier, Audience.TOOLS)
    claims = tools.check(token)
    token.provider_token.signature = bytes(64)
    with pytest.raises(Unauthenticated):
        tools.provider_token(token, claims)


def test_a_token_of_another_installation_is_refused(signer: Signer, verifier: Verifier) -> None:
    with pytest.raises(PermissionDenied, match="'tenure'"):
        TokenChecker(verifier, Audience.TOOLS, "other").check(sign_task_claims(signer, CLAIMS, NOW))


@pytest.mark.parametrize("audience", Audience)
def test_a_token_without_audiences_is_refused(signer: Signer, verifier: Verifier, audience: Audience) -> None:
    with pytest.raises(PermissionDenied, match="no service") as refused:
        TokenChecker(verifier, audience).check(sign_claims(signer, CLAIMS, NOW))
    assert refused.value.reason == "WRONG_AUDIENCE"


def test_a_token_without_a_provider_token_has_none(signer: Signer, verifier: Verifier) -> None:
    token = sign_claims(signer, replace(CLAIMS, audiences=(Audience.TOOLS,)), NOW)
    tools = TokenChecker(verifier, Audience.TOOLS)
    assert tools.provider_token(token, tools.check(token)) == b""


def test_unknown_audience_is_refused(signer: Signer, verifier: Verifier) -> None:
    message = token_pb2.TokenClaims.FromString(sign_claims(signer, CLAIMS, NOW).claims)
    message.audiences.append(77)  # type: ignore[arg-type]  # of a newer release
    signed = signer.sign(message.SerializeToString())
    token = token_pb2.FencingToken(claims=signed.claims, key_id=signed.key_id, signature=signed.signature)
    with pytest.raises(PermissionDenied, match="newer release"):
        TokenChecker(verifier, Audience.TOOLS).check(token)
