"""JSON Web Tokens of an identity provider: verifies the token of each call by the provider's published keys.

The keys come from a file or a URL (RFC 7517). They are read again every minute, and when a token names a key that is
not among them. While they cannot be read, the last good ones count. Only asymmetric algorithms are accepted, and only
with the key that the token names: whatever else its header says about keys (jku, jwk, x5u) is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from services.gateway.identity_claims import ClaimMapping, client_of
from tenure.domain.access import Permission, Principal
from tenure.domain.errors import Unauthenticated, Unavailable
from tenure.domain.outbound import is_clear_text
from tenure.runtime.http.outbound_http import http_tls_context
from tenure.runtime.settings import ConfigurationError, setting

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REQUIRED_CLAIMS: Final = ("exp", "iss", "aud", "sub")
LEEWAY_SECONDS: Final = 10
"""How far the clocks of the provider and of this machine may differ."""
REFRESH_SECONDS: Final = 60.0
UNKNOWN_KEY_SECONDS: Final = 5.0
"""Between two reads for tokens that name an unknown key: anybody can send such tokens."""
FETCH_SECONDS: Final = 10.0
MAX_KEYS_BYTES: Final = 1 << 20
MIN_RSA_BITS: Final = 2048
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JwtSettings:
    """The settings of JSON Web Tokens, under TENURE_GATEWAY_JWT_."""

    issuer: str = setting("the claim iss of all tokens", default="")
    audience: str = setting("a value of the claim aud of all tokens", default="")
    keys: str = setting("the provider's keys, a JWK set: an https URL or a file", default="")
    tenant_claim: str = setting("the claim that names the tenant; a path may have dots", default="tenant")
    permission_claim: str = setting("the claim that lists permissions, a text or a list", default="scope")
    permissions: tuple[str, ...] = setting(
        "its values, as value=permission; a value without = is the permission's own name",
        default=("read", "write", "approve", "tenant-admin", "operate"),
    )

    def problems(self) -> Iterator[str]:
        """Yields the settings that are missing or unusable. Without any of the three there are no tokens."""
        texts = {"ISSUER": self.issuer, "AUDIENCE": self.audience, "KEYS": self.keys}
        missing = [f"TENURE_GATEWAY_JWT_{name}" for name, text in texts.items() if not text]
        if 0 < len(missing) < len(texts):
            yield f"{' and '.join(missing)} must be set too: a token is verified by issuer, audience and keys"
        if "://" in self.keys and not _is_safe(self.keys):
            yield "TENURE_GATEWAY_JWT_KEYS must be a file, an https URL, or an http URL of this machine"
        try:
            self.mapping()
        except ValueError as error:
            yield f"TENURE_GATEWAY_JWT_PERMISSIONS: {error}"

    def mapping(self) -> ClaimMapping:
        """Returns how claims become clients. Raises ValueError for an unknown permission."""
        permissions = {}
        for pair in self.permissions:
            value, _, name = pair.rpartition("=")
            key = name.upper().replace("-", "_")
            if key not in Permission.__members__:
                raise ValueError(f"{name} is none of {', '.join(JwtSettings.permissions)}")
            permissions[value or name] = Permission[key]
        return ClaimMapping(self.tenant_claim, self.permission_claim, permissions)


class JsonWebTokens:
    """Verifies tokens. Open it: it reads the provider's keys now and then."""

    def __init__(self, settings: JwtSettings) -> None:
        self._issuer, self._audience, self._mapping = settings.issuer, settings.audience, settings.mapping()
        self._keys = _KeySet(settings.keys)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[JsonWebTokens]:
        """Reads the keys, and again every minute. Raises ConfigurationError for a file without usable keys."""
        await self._keys.read_first()
        refreshing = asyncio.create_task(self._keys.refresh_forever())
        try:
            yield self
        finally:
            refreshing.cancel()

    async def authenticate(self, token: str) -> Principal:
        """Returns the client. Raises Unauthenticated; Unavailable before the provider's keys could be read once."""
        try:
            key = await self._keys.find(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(REQUIRED_CLAIMS)},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired: get a new one", reason="TOKEN_EXPIRED") from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:  # the header and the claims are a stranger's JSON
            raise Unauthenticated(f"the token is not valid: {error}", reason="TOKEN_INVALID") from None
        return client_of(claims, self._mapping)


class _KeySet:
    """The provider's keys by their ids."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at = -UNKNOWN_KEY_SECONDS
        self._reading = asyncio.Lock()

    async def read_first(self) -> None:
        """Reads the keys. Raises ConfigurationError for an unusable file; a URL may answer later."""
        try:
            await self._read()
        except (OSError, httpx2.HTTPError, ValueError) as error:
            problem = f"TENURE_GATEWAY_JWT_KEYS: {self._source} cannot be used: {error}"
            if "://" not in self._source:
                raise ConfigurationError([problem]) from error
            _log.warning(problem)

    async def refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self._try_read()

    async def find(self, key_id: object) -> jwt.PyJWK:
        """Returns the key. Raises Unauthenticated for an unknown one."""
        if not isinstance(key_id, str):
            raise Unauthenticated("the token names no key: its header needs kid", reason="TOKEN_INVALID")
        if key_id not in self._keys:
            await self._read_for_unknown()
        if not self._keys:
            raise Unavailable("the keys of the identity provider could not be read yet", reason="NO_JWT_KEYS")
        if key_id not in self._keys:
            raise Unauthenticated("the identity provider has no such key as the token's", reason="TOKEN_INVALID")
        return self._keys[key_id]

    async def _read_for_unknown(self) -> None:
        async with self._reading:  # who waited here finds that another one has just read
            if monotonic() - self._read_at >= UNKNOWN_KEY_SECONDS:
                await self._try_read()

    async def _try_read(self) -> None:
        try:
            await self._read()
        except (OSError, httpx2.HTTPError, ValueError) as error:
            _log.warning(
                "the keys of the identity provider cannot be read; the last good ones count",
                extra={"source": self._source, "error": str(error) or type(error).__name__},
            )

    async def _read(self) -> None:
        self._read_at = monotonic()
        if "://" in self._source:
            text = await _fetch(self._source)
        else:
            text = await asyncio.to_thread(Path(self._source).read_bytes)
        self._keys = read_keys(text)


def read_keys(text: bytes) -> Mapping[str, jwt.PyJWK]:
    """Returns the keys of a JWK set that can verify signatures. Raises ValueError if there are none."""
    try:
        published = jwt.PyJWKSet.from_json(text.decode())
    except jwt.PyJWTError as error:
        raise ValueError(f"it is not a JWK set: {error}") from error
    except (AttributeError, TypeError, KeyError, RecursionError) as error:
        raise ValueError("it is not a JWK set") from error
    usable = {key.key_id: key for key in published.keys if key.key_id and _verifies(key)}
    if not usable:
        raise ValueError("it has no public key with a kid for signatures by RSA, an elliptic curve or Ed25519")
    return usable


def _verifies(key: jwt.PyJWK) -> bool:
    """Whether signatures by the key count: not with a shared secret (HS256) or a short RSA key."""
    if key.algorithm_name not in ALGORITHMS or key.public_key_use not in {None, "sig"}:
        return False
    return not isinstance(key.key, RSAPublicKey) or key.key.key_size >= MIN_RSA_BITS


async def _fetch(url: str) -> bytes:
    """Returns the document. Raises HTTPError, TimeoutError (an OSError) and ValueError."""
    async with (
        asyncio.timeout(FETCH_SECONDS),
        httpx2.AsyncClient(verify=http_tls_context(), follow_redirects=False, timeout=FETCH_SECONDS) as client,
        client.stream("GET", url) as answer,
    ):
        if answer.status_code != httpx2.codes.OK:
            raise ValueError(f"it answered with the status {answer.status_code}")
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_KEYS_BYTES:
                raise ValueError(f"it has more than {MAX_KEYS_BYTES} bytes")
        return bytes(body)


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number, or half of the brackets of an IPv6 address
        return False
    return is_url and not is_clear_text(url)
