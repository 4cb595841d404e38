"""Clients with tokens of an identity provider: what a token allows, which are refused, and the provider's keys."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf import descriptor_pool
from jwt.warnings import InsecureKeyLengthWarning

from services.gateway import json_web_tokens
from services.gateway.json_web_tokens import JsonWebTokens, JwtSettings
from tenure.client import Client
from tenure.domain.access import EVERYTHING, Permission
from tenure.domain.errors import NotFound, PermissionDenied, Unauthenticated, Unavailable
from tenure.runtime.settings import ConfigurationError, load
from tenure.v1 import task_pb2, tenant_service_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.security.access_table import code_of
from tests.security.guarded import Guarded, bearer
from tests.security.identity_provider import TENANT, Provider, public_key, serve_provider, variables
from tests.support.patience import PATIENCE_SECONDS


def jwt_settings(keys: str, **more: str) -> JwtSettings:
    return load(JwtSettings, {**variables(keys), **more}, prefix="TENURE_GATEWAY_JWT_")


async def test_a_token_decides_tenant_actor_and_permissions(guarded: Guarded) -> None:
    hello = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model="sim-hello")))
    async with guarded.client(guarded.provider.token()) as alice:
        task = await alice.submit("any", request=hello)
        assert task.tenant == "acme"
        assert (await alice.wait(task.task_id, PATIENCE_SECONDS)).state == task_pb2.TASK_STATE_SUCCEEDED
        queued = await alice.submit("any", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="none")))
        await alice.cancel(queued.task_id, "the test wants it")
        assert "user/alice" in {entry.actor async for entry in alice.entries(queued.task_id)}
        with pytest.raises(PermissionDenied):
            await alice.tenants.ListTenants(tenant_service_pb2.ListTenantsRequest())
    async with guarded.client(guarded.provider.token(named={TENANT: "other"})) as bob:
        with pytest.raises(NotFound):
            await bob.get(task.task_id)
    async with guarded.client(guarded.provider.token(scope="openid read")) as reader:
        assert (await reader.get(task.task_id)).task_id == task.task_id
        with pytest.raises(PermissionDenied):
            await reader.submit("any", request=hello)
    async with guarded.client(guarded.provider.token(), tenant="other") as alice:
        with pytest.raises(PermissionDenied, match="belongs to the tenant acme"):
            await alice.get(task.task_id)
    operator = guarded.provider.token(scope=["operate"], named={TENANT: None})
    async with guarded.client(operator, "acme") as client:
        assert (await client.get(task.task_id)).task_id == task.task_id


def segment(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def hostile_tokens(provider: Provider) -> dict[str, str]:
    own = rsa.generate_private_key(65537, 2048)
    good = provider.token()
    header, claims, signature = good.split(".")
    pem = provider.keys["rsa"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    confused = f"{segment({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{claims}"
    by_public_key = base64.urlsafe_b64encode(hmac.digest(pem, confused.encode(), sha256)).decode().rstrip("=")
    mine = public_key(own, "rsa")
    more = {**jwt.decode(good, options={"verify_signature": False}), "scope": "operate"}
    hour_ago = time.time() - 3600
    return {
        "no signature": f"{segment({'alg': 'none', 'kid': 'rsa'})}.{claims}.",
        "signature left out": f"{header}.{claims}.",
        "the public key as a shared secret": f"{confused}.{by_public_key}",
        "changed claims": f"{header}.{segment(more)}.{signature}",
        "a stranger's key": provider.token(key=own),
        "a key in the header": provider.token(key=own, header={"jwk": mine}),
        "a URL of keys in the header": provider.token(key=own, header={"jku": "https://evil.example/jwks"}),
        "a certificate in the header": provider.token(key=own, header={"x5u": "https://evil.example/c"}),
        "an unknown critical extension": provider.token(header={"crit": ["b64", "exp2"], "exp2": 1}),
        "an unknown key": provider.token(key=own, header={"kid": "other"}),
        "another algorithm of the key": provider.token(algorithm="RS512"),
        "a key id that is not text": f"{segment({'alg': 'RS256', 'kid': 7})}.{claims}.{signature}",
        "no key id": f"{segment({'alg': 'RS256'})}.{claims}.{signature}",
        "another issuer": provider.token(iss="https://evil.example"),
        "no issuer": provider.token(iss=None),
        "another audience": provider.token(aud="other"),
        "no audience": provider.token(aud=None),
        "expired": provider.token(exp=hour_ago),
        "never expires": provider.token(exp=None),
        "an expiry that is not a number": provider.token(exp="soon"),
        "not yet": provider.token(nbf=time.time() + 3600),
        "no subject": provider.token(sub=None),
        "an empty subject": provider.token(sub=""),
        "a subject with a line break": provider.token(sub="alice\nroot"),
        "a long subject": provider.token(sub="a" * 256),
        "no tenant": provider.token(named={TENANT: None}),
        "a tenant of no form": provider.token(named={TENANT: "../acme"}),
        "two tenants": provider.token(named={TENANT: ["acme", "other"]}),
        "permissions that are not texts": provider.token(scope=[["write"]]),
        "claims that are a list": f"{header}.{base64.urlsafe_b64encode(b'[]').decode().rstrip('=')}.{signature}",
        "deep JSON": f"{base64.urlsafe_b64encode(b'[' * 3000).decode().rstrip('=')}.{claims}.{signature}",
        "no token": "abc",
        "empty": "",
    }


@pytest.mark.faults
async def test_a_hostile_token_is_not_a_caller(guarded: Guarded) -> None:
    provider, pool = guarded.provider, descriptor_pool.Default()
    method = pool.FindServiceByName("tenure.v1.TaskService").methods_by_name["GetTask"]

    tokens = hostile_tokens(provider)
    async with guarded.client(provider.token()) as client:
        channel = client._channel.channel.raw
        codes = {name: await code_of(channel, method, bearer(text)) for name, text in tokens.items()}
        assert codes == dict.fromkeys(tokens, "UNAUTHENTICATED")
        assert await code_of(channel, method, bearer(provider.token())) == "INVALID_ARGUMENT"


async def test_a_stream_ends_when_its_token_expires(guarded: Guarded) -> None:
    expires_at = int(time.time()) + 4  # a whole second, because the library cuts off the fraction of `exp`
    token = guarded.provider.token(exp=expires_at - json_web_tokens.LEEWAY_SECONDS)
    async with guarded.client(token) as alice:
        with pytest.raises(Unauthenticated) as ended:
            await asyncio.wait_for(_watched_to_its_end(alice), PATIENCE_SECONDS)
    assert ended.value.reason == "TOKEN_EXPIRED"
    assert time.time() >= expires_at


async def _watched_to_its_end(client: Client) -> None:
    async for _ in client.tasks.WatchTasks(api.WatchTasksRequest()):
        pass


async def test_the_client_asks_for_its_token_with_each_call(guarded: Guarded) -> None:
    tokens = [guarded.provider.token(sub=name) for name in ("first", "second")]
    async with guarded.client(lambda: tokens[0]) as client:
        for name in ("first", "second"):
            task = await client.submit("any", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="none")))
            await client.cancel(task.task_id, "the test wants it")
            assert f"user/{name}" in {entry.actor async for entry in client.entries(task.task_id)}
            del tokens[:-1]


async def test_the_command_line_sends_the_token_of_its_file(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.provider.token() + "\n")
    tls = ["--tls-ca-file", str(guarded.ca_file)]
    options = ["--api-key-file", str(file), *tls]
    done = await tenure(*options, "submit", "hello", "--model", "sim-hello", "--watch", address=guarded.address)
    assert "SUCCEEDED" in done.out, done
    file.write_text(guarded.provider.token(exp=time.time() - 3600))
    refused = await tenure(*options, "list", address=guarded.address)
    assert (refused.code != 0, "has expired" in refused.err) == (True, True), refused


# The keys of the provider.


async def subject(tokens: JsonWebTokens, token: str) -> str:
    return (await tokens.authenticate(token)).name


async def test_a_new_key_counts_at_once_and_an_old_one_until_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_web_tokens, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(json_web_tokens, "UNKNOWN_KEY_SECONDS", 0.0)
    with serve_provider() as provider:
        async with JsonWebTokens(jwt_settings(provider.url)).opened() as tokens:
            old = provider.token()
            provider.keys["ec"] = ec.generate_private_key(ec.SECP256R1())
            provider.keys["ed"] = ed25519.Ed25519PrivateKey.generate()
            assert await subject(tokens, provider.token("ec", "ES256")) == "user/alice"
            assert await subject(tokens, provider.token("ed", "EdDSA")) == "user/alice"
            assert await subject(tokens, old) == "user/alice"
            provider.keys.pop("rsa")
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(Unauthenticated, match="no such key"):
                    await _use_until_it_is_refused(tokens, old)


async def _use_until_it_is_refused(tokens: JsonWebTokens, token: str) -> None:
    while True:
        await subject(tokens, token)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("status", [500, 302, 404])
async def test_the_last_good_keys_count_while_the_provider_fails(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(json_web_tokens, "UNKNOWN_KEY_SECONDS", 0.0)
    with serve_provider() as provider:
        async with JsonWebTokens(jwt_settings(provider.url)).opened() as tokens:
            provider.status = status
            provider.keys["new"] = ed25519.Ed25519PrivateKey.generate()
            reads = provider.reads
            with pytest.raises(Unauthenticated, match="no such key"):
                await subject(tokens, provider.token("new", "EdDSA"))
            assert provider.reads == reads + 1
            assert await subject(tokens, provider.token()) == "user/alice"
            provider.status = 200
            assert await subject(tokens, provider.token("new", "EdDSA")) == "user/alice"


async def test_a_provider_that_never_answered_makes_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_web_tokens, "UNKNOWN_KEY_SECONDS", 0.0)
    with serve_provider() as provider:
        provider.status = 503
        async with JsonWebTokens(jwt_settings(provider.url)).opened() as tokens:
            with pytest.raises(Unavailable, match="could not be read yet"):
                await subject(tokens, provider.token())
            provider.status = 200
            assert await subject(tokens, provider.token()) == "user/alice"


async def test_unknown_keys_make_no_storm_of_reads() -> None:
    with serve_provider() as provider:
        own = ed25519.Ed25519PrivateKey.generate()
        async with JsonWebTokens(jwt_settings(provider.url)).opened() as tokens:
            for number in range(50):
                with pytest.raises(Unauthenticated):
                    await subject(tokens, provider.token(f"k{number}", "EdDSA", key=own))
        assert provider.reads == 1


async def test_weak_and_foreign_keys_of_a_set_are_ignored(tmp_path: Path) -> None:
    weak, good = rsa.generate_private_key(65537, 1024), rsa.generate_private_key(65537, 2048)
    shared = {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"s" * 32).decode().rstrip("=")}
    for_encryption = public_key(good, "enc") | {"use": "enc"}
    file, provider = tmp_path / "jwks.json", Provider({"weak": weak, "good": good})
    file.write_text(json.dumps({"keys": [shared, for_encryption, *json.loads(provider.jwks())["keys"]]}))
    async with JsonWebTokens(jwt_settings(str(file))).opened() as tokens:
        assert await subject(tokens, provider.token("good")) == "user/alice"
        with pytest.warns(InsecureKeyLengthWarning):
            by_weak_key = provider.token("weak")
        for token in (
            by_weak_key,
            provider.token("enc", key=good),
            provider.token("shared", "HS256", key=b"s" * 32),
        ):
            with pytest.raises(Unauthenticated):
                await subject(tokens, token)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"keys": []}', '{"keys": [7]}', '{"keys": 7}', "\udcff"])
async def test_a_file_without_usable_keys_stops_the_gateway(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigurationError, match="TENURE_GATEWAY_JWT_KEYS"):
        async with JsonWebTokens(jwt_settings(str(file))).opened():
            pass


async def test_claims_are_found_by_name_or_path_and_mapped(tmp_path: Path) -> None:
    provider = Provider({"ed": ed25519.Ed25519PrivateKey.generate()})
    file = tmp_path / "jwks.json"
    file.write_bytes(provider.jwks())
    names = {
        "TENANT_CLAIM": "org.tenant",
        "PERMISSION_CLAIM": "realm_access.roles",
        "PERMISSIONS": "Staff=write,x=operate",
    }
    settings = jwt_settings(str(file), **{f"TENURE_GATEWAY_JWT_{name}": text for name, text in names.items()})
    async with JsonWebTokens(settings).opened() as tokens:
        claims: dict[str, Any] = {"org": {"tenant": "acme"}, "realm_access": {"roles": ["Staff", "write", "operate"]}}
        client = await tokens.authenticate(provider.token("ed", "EdDSA", **claims))
        assert (client.tenant, client.permissions) == ("acme", frozenset({Permission.WRITE, Permission.READ}))
        claims = {"org": 7, "realm_access": {"roles": "x y"}}
        client = await tokens.authenticate(provider.token("ed", "EdDSA", **claims))
        assert (client.tenant, client.permissions) == (None, EVERYTHING)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"JWT_AUDIENCE": ""}, "TENURE_GATEWAY_JWT_AUDIENCE must be set too"),
        ({"JWT_KEYS": "http://login.example.com/jwks"}, "must be a file, an https URL"),
        ({"JWT_KEYS": "ftp://login.example.com/jwks"}, "must be a file, an https URL"),
        ({"JWT_KEYS": "https://login.example.com:PORT/jwks"}, "must be a file, an https URL"),
        ({"JWT_KEYS": "https://[::1/jwks"}, "must be a file, an https URL"),
        ({"JWT_PERMISSIONS": "admin=root"}, "root is none of read, write"),
    ],
)
async def test_unusable_settings_are_named(changed: Mapping[str, str], problem: str) -> None:
    given = {**variables("https://login.example.com/jwks"), **{f"TENURE_GATEWAY_{k}": v for k, v in changed.items()}}
    with pytest.raises(ConfigurationError, match=problem):
        load(JwtSettings, given, prefix="TENURE_GATEWAY_JWT_")
