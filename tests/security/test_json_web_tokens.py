"""Clients with tokens of an identity provider: what a token allows, which are refused, and the provider's keys."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf import descriptor_pool
from jwt.warnings import InsecureKeyLengthWarning

from devstack import Stack, StackOptions
from services.gateway import json_web_tokens
from services.gateway.json_web_tokens import JsonWebTokens, JwtSettings
from tenure.client import Client
from tenure.domain.access import EVERYTHING, Permission
from tenure.domain.errors import NotFound, PermissionDenied, Unauthenticated, Unavailable
from tenure.runtime.settings import ConfigurationError, load
from tenure.runtime.tls import ClientTls
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.security.test_matrix import code_of
from tests.support.patience import PATIENCE_SECONDS

ISSUER, AUDIENCE, TENANT = "https://login.example.com", "tenure", "https://example.com/tenant"
EXPIRES_SECONDS = 600
pytestmark = pytest.mark.asyncio(loop_scope="module")


def public_key(private: Any, kid: str, **fields: str) -> dict[str, Any]:
    algorithms: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    to_jwk = next(algorithm.to_jwk for kind, algorithm in algorithms.items() if isinstance(private, kind))
    return {**to_jwk(private.public_key(), as_dict=True), "kid": kid, "use": "sig", **fields}


@dataclass
class Provider:
    """An identity provider: its keys, and the JWK set that it publishes."""

    keys: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    reads: int = 0
    url: str = ""

    def jwks(self) -> bytes:
        return json.dumps({"keys": [public_key(key, kid) for kid, key in self.keys.items()]}).encode()

    def token(self, kid: str = "rsa", algorithm: str = "RS256", *, key: Any = None, **claims: Any) -> str:
        """A token of alice at acme who may write, with these claims instead; None leaves a claim out."""
        header, changed = claims.pop("header", {}), claims.pop("named", {})
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", TENANT: "acme", "scope": "openid write"}
        chosen = {**usual, "exp": time.time() + EXPIRES_SECONDS, **claims, **changed}
        present = {name: value for name, value in chosen.items() if value is not None}
        return jwt.encode(present, key or self.keys[kid], algorithm, headers={"kid": kid, **header})


@contextmanager
def serve_provider() -> Iterator[Provider]:
    provider = Provider({"rsa": rsa.generate_private_key(65537, 2048)})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.reads += 1
            self.send_response(provider.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(provider.jwks())

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}/jwks"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def variables(keys: str) -> dict[str, str]:
    return {
        "TENURE_GATEWAY_JWT_ISSUER": ISSUER,
        "TENURE_GATEWAY_JWT_AUDIENCE": AUDIENCE,
        "TENURE_GATEWAY_JWT_KEYS": keys,
        "TENURE_GATEWAY_JWT_TENANT_CLAIM": TENANT,
    }


def jwt_settings(keys: str, **more: str) -> JwtSettings:
    return load(JwtSettings, {**variables(keys), **more}, prefix="TENURE_GATEWAY_JWT_")


@dataclass(frozen=True)
class Guarded:
    """A stack whose gateway accepts tokens and API keys."""

    stack: Stack
    provider: Provider

    def client(self, key: Any, tenant: str | None = None) -> Client:
        tls = ClientTls(self.stack.layout.certificates / "ca.pem")
        return Client(self.stack.gateway_address, api_key=key, tenant=tenant, tls=tls)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    with serve_provider() as provider:
        gateway = {"TENURE_GATEWAY_AUTHENTICATION": "api-keys,jwt", **variables(provider.url)}
        data_dir = tmp_path_factory.mktemp("tokens") / "data"
        async with Stack(
            StackOptions(data_dir=data_dir, workers=1, tls=True, environment={"gateway": gateway})
        ) as stack:
            yield Guarded(stack, provider)


async def test_a_token_decides_tenant_actor_and_permissions(guarded: Guarded) -> None:
    hello = api.SubmitTaskRequest(agent=task_pb2.AgentSpec(model="sim-hello"))
    async with guarded.client(guarded.provider.token()) as alice:
        task = await alice.submit("any", request=hello)
        assert task.tenant == "acme"
        assert (await alice.wait(task.task_id, PATIENCE_SECONDS)).state == task_pb2.TASK_STATE_SUCCEEDED
        queued = await alice.submit("any", request=api.SubmitTaskRequest(queue="none"))
        await alice.cancel(queued.task_id, "the test wants it")
        assert "user/alice" in {entry.actor async for entry in alice.entries(queued.task_id)}
        with pytest.raises(PermissionDenied):
            await alice.list_tenants().__anext__()
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
        "a key id that is no text": f"{segment({'alg': 'RS256', 'kid': 7})}.{claims}.{signature}",
        "no key id": f"{segment({'alg': 'RS256'})}.{claims}.{signature}",
        "another issuer": provider.token(iss="https://evil.example"),
        "no issuer": provider.token(iss=None),
        "another audience": provider.token(aud="other"),
        "no audience": provider.token(aud=None),
        "expired": provider.token(exp=hour_ago),
        "never expires": provider.token(exp=None),
        "an expiry that is no number": provider.token(exp="soon"),
        "not yet": provider.token(nbf=time.time() + 3600),
        "no subject": provider.token(sub=None),
        "an empty subject": provider.token(sub=""),
        "a subject with a line break": provider.token(sub="alice\nroot"),
        "a long subject": provider.token(sub="a" * 256),
        "no tenant": provider.token(named={TENANT: None}),
        "a tenant of no form": provider.token(named={TENANT: "../acme"}),
        "two tenants": provider.token(named={TENANT: ["acme", "other"]}),
        "permissions that are no texts": provider.token(scope=[["write"]]),
        "claims that are a list": f"{header}.{base64.urlsafe_b64encode(b'[]').decode().rstrip('=')}.{signature}",
        "deep JSON": f"{base64.urlsafe_b64encode(b'[' * 3000).decode().rstrip('=')}.{claims}.{signature}",
        "no token": "abc",
        "empty": "",
    }


async def test_a_hostile_token_is_no_caller(guarded: Guarded) -> None:
    provider, pool = guarded.provider, descriptor_pool.Default()
    method = pool.FindServiceByName("tenure.v1.TaskService").methods_by_name["GetTask"]

    def bearer(token: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {token}"),)

    tokens = hostile_tokens(provider)
    async with guarded.client(provider.token()) as client:
        channel = client._channel.raw
        codes = {name: await code_of(channel, "TaskService", method, bearer(text)) for name, text in tokens.items()}
        assert codes == dict.fromkeys(tokens, "UNAUTHENTICATED")
        assert await code_of(channel, "TaskService", method, bearer(provider.token())) == "INVALID_ARGUMENT"


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
            task = await client.submit("any", request=api.SubmitTaskRequest(queue="none"))
            await client.cancel(task.task_id, "the test wants it")
            assert f"user/{name}" in {entry.actor async for entry in client.entries(task.task_id)}
            del tokens[:-1]


async def test_the_command_line_sends_the_token_of_its_file(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.provider.token() + "\n")
    tls = ["--tls-ca-file", str(guarded.stack.layout.certificates / "ca.pem")]
    options = ["--api-key-file", str(file), *tls]
    done = await tenure(
        *options, "submit", "hello", "--model", "sim-hello", "--watch", address=guarded.stack.gateway_address
    )
    assert "SUCCEEDED" in done.out, done
    file.write_text(guarded.provider.token(exp=time.time() - 3600))
    refused = await tenure(*options, "list", address=guarded.stack.gateway_address)
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
        ({"JWT_PERMISSIONS": "admin=root"}, "root is none of read, write"),
    ],
)
async def test_unusable_settings_are_named(changed: Mapping[str, str], problem: str) -> None:
    given = {**variables("https://login.example.com/jwks"), **{f"TENURE_GATEWAY_{k}": v for k, v in changed.items()}}
    with pytest.raises(ConfigurationError, match=problem):
        load(JwtSettings, given, prefix="TENURE_GATEWAY_JWT_")
