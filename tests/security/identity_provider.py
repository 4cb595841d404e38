"""An identity provider on this machine: it signs JSON Web Tokens, and publishes its keys by HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER: Final = "https://login.example.com"
AUDIENCE: Final = "tenure"
TENANT: Final = "https://example.com/tenant"
EXPIRES_SECONDS: Final = 600


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
    """Its keys, and the JWK set that it publishes."""

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
    """The settings of a gateway that accepts the provider's tokens."""
    return {
        "TENURE_GATEWAY_JWT_ISSUER": ISSUER,
        "TENURE_GATEWAY_JWT_AUDIENCE": AUDIENCE,
        "TENURE_GATEWAY_JWT_KEYS": keys,
        "TENURE_GATEWAY_JWT_TENANT_CLAIM": TENANT,
    }
