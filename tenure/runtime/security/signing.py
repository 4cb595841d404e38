"""Ed25519 signatures of fencing tokens: the coordinator signs, and every fenced service verifies.

Verifying a signature takes about 100 µs, twice a commit's share of the database time, so verified tokens are cached by
their digests.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Final, Generic, NamedTuple, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tenure.domain.errors import Unauthenticated, Unavailable
from tenure.runtime.settings import ConfigurationError

# The cache stores digests, so its size does not depend on its keys: a token may have 16 KB, and a replica sees tens of
# thousands of tokens.

_Value = TypeVar("_Value")
MAX_ENTRIES: Final = 65_536


class DigestCache(Generic[_Value]):
    """A cache of values by the digest of a token. Evicts the oldest first."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._values: OrderedDict[bytes, _Value] = OrderedDict()
        self.get: Callable[[bytes], _Value | None] = self._values.get

    def put(self, digest: bytes, value: _Value) -> None:
        """Stores the value under the digest."""
        self._values[digest] = value
        if len(self._values) > self._max_entries:
            self._values.popitem(last=False)

    def clear(self) -> None:
        self._values.clear()


LOOK_SECONDS: Final = 5.0
"""Seconds between two checks of the key file for changes."""
_log: Final = logging.getLogger(__name__)


class KeyFileError(ConfigurationError, ValueError):
    """A key file is missing or invalid. A process does not start with it."""


UNKNOWN_KEY: Final = "unknown_key"
"""The metadata of INVALID_TOKEN with the key that the service does not have."""


class SignedBytes(NamedTuple):
    """A token on the wire: `signature` covers exactly the bytes `claims`."""

    claims: bytes
    key_id: str
    signature: bytes

    def digest(self) -> bytes:
        """Returns a digest of the whole token. The lengths come first, so that no two tokens hash the same bytes."""
        claims, key_id, signature = self
        name = key_id.encode()
        return sha256(b"%d %d " % (len(claims), len(name)) + claims + name + signature).digest()


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with the private key. Verifiers choose the public key by `key_id`."""

    key_id: str
    _key: Ed25519PrivateKey

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Reads a private key file of `write_key_pair`. Raises KeyFileError for a missing or invalid file."""
        try:
            stored = json.loads(path.read_text())
            return cls(stored["key_id"], Ed25519PrivateKey.from_private_bytes(base64.b64decode(stored["private_key"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{path} is not a signing key of Tenure ({error}); create one with `tenure keys create`"
            raise KeyFileError([message]) from error

    def sign(self, claims: bytes) -> SignedBytes:
        return SignedBytes(claims, self.key_id, self._key.sign(claims))

    def public_key_bytes(self) -> bytes:
        """Returns the 32 raw bytes of the public key, for ListSigningKeys."""
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


class Verifier:
    """Verifies tokens with the public keys of a file.

    It reads the file again when a token has an unknown key, and every `look_seconds`: a withdrawn key verifies no
    longer than that.
    """

    def __init__(self, path: Path, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._path, self._look_seconds = path, look_seconds
        self._looked_at = monotonic()
        self._modified_ns = 0
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._checked: DigestCache[bool] = DigestCache()
        self._reload()

    def check(self, token: SignedBytes) -> bytes:
        """Returns the digest of the token. Raises Unauthenticated (INVALID_TOKEN) unless a key of the file made the
        signature, and Unavailable if the key is unknown and the file cannot be read.
        """
        if monotonic() - self._looked_at >= self._look_seconds:
            self._look()
        digest = token.digest()
        if self._checked.get(digest):
            return digest
        key = self._key(token.key_id)
        try:
            key.verify(token.signature, token.claims)
        except InvalidSignature as error:
            raise Unauthenticated(
                "the signature of the fencing token does not match its claims", reason="INVALID_TOKEN"
            ) from error
        self._checked.put(digest, True)
        return digest

    def public_keys(self) -> Mapping[str, bytes]:
        """Returns the raw public keys by key id. Raises KeyFileError."""
        self._reload()
        return {key_id: key.public_bytes(Encoding.Raw, PublicFormat.Raw) for key_id, key in self._keys.items()}

    def _look(self) -> None:
        """Reads the file again if it changed. An invalid file changes nothing: a mistake must not stop all tasks."""
        self._looked_at = monotonic()
        try:
            self._reload()
        except KeyFileError as error:
            _log.error("the verifying keys cannot be read; the previous ones stay in use", extra={"error": error})

    def _key(self, key_id: str) -> Ed25519PublicKey:
        if key_id not in self._keys:
            try:
                self._reload()
            except KeyFileError as error:  # known keys stay valid, tokens of an unknown key must wait
                raise Unavailable("the file of verifying keys cannot be read now", retry_after_seconds=1.0) from error
        if key_id not in self._keys:
            message = f"the fencing token is signed with an unknown key {key_id!r}"
            raise Unauthenticated(message, reason="INVALID_TOKEN", metadata={UNKNOWN_KEY: key_id})
        return self._keys[key_id]

    def _reload(self) -> None:
        try:
            modified_ns = self._path.stat().st_mtime_ns
            if modified_ns == self._modified_ns:
                return
            stored = json.loads(self._path.read_text())
            keys = {
                item["key_id"]: Ed25519PublicKey.from_public_bytes(base64.b64decode(item["public_key"]))
                for item in stored["keys"]
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{self._path} has no verifying keys of Tenure ({error}); create them with `tenure keys create`"
            raise KeyFileError([message]) from error
        if any(keys.get(key_id) != key for key_id, key in self._keys.items()):
            self._checked.clear()  # a key was withdrawn or replaced: its cached tokens must be verified again
        self._keys, self._modified_ns = keys, modified_ns


def write_key_pair(private_path: Path, public_path: Path, key_id: str) -> None:
    """Creates a key pair. Only the owner can read the private file. The public file keeps its other keys.

    Raises FileExistsError if the private file exists.
    """
    key = Ed25519PrivateKey.generate()
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    private_path.touch(mode=0o600, exist_ok=False)
    private_path.write_text(json.dumps({"key_id": key_id, "private_key": base64.b64encode(raw).decode()}))
    public = base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    _write_keys(public_path, [*_stored_keys(public_path), {"key_id": key_id, "public_key": public}])


def next_key_path(private_path: Path) -> Path:
    """Returns the place of a rotation's new private key until the services know its public key."""
    return private_path.with_name(f"{private_path.name}.next")


def withdraw_key(private_path: Path, public_path: Path, key_id: str) -> None:
    """Removes a public key: tokens that it signed verify no longer.

    Raises ValueError if the key is not in the file, or if coordinators sign with it, now or after the rotation.
    """
    known = _stored_keys(public_path)
    if key_id not in {item["key_id"] for item in known}:
        raise ValueError(f"{public_path} has no key {key_id}")
    for path in (private_path, next_key_path(private_path)):
        if path.exists() and Signer.load(path).key_id == key_id:
            raise ValueError(f"the key {key_id} is in use ({path}): rotate the key first")
    _write_keys(public_path, [item for item in known if item["key_id"] != key_id])


def _stored_keys(public_path: Path) -> list[dict[str, str]]:
    keys: list[dict[str, str]] = json.loads(public_path.read_text())["keys"] if public_path.exists() else []
    return keys


def _write_keys(public_path: Path, keys: list[dict[str, str]]) -> None:
    """Replaces the file atomically: running services read this file and must not see half of it."""
    fresh = public_path.with_name(f".{public_path.name}.new")
    fresh.write_text(json.dumps({"keys": keys}, indent=2))
    fresh.replace(public_path)
