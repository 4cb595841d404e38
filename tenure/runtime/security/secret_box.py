"""Encrypts the secrets that a store keeps, by AES-256-GCM with keys of a file.

The file is {"current": KEY_ID, "keys": {KEY_ID: 32 bytes in base64}}; `tenure keys encryption` writes it. A sealed
secret names its key, so that a new key can take over while secrets of former keys are still there. The associated data
binds a secret to its owner: moved to another row, it does not open.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenure.domain.errors import Unavailable
from tenure.runtime.security.signing import LOOK_SECONDS, KeyFileError

SECRET_NOT_READABLE: Final = "SECRET_NOT_READABLE"
_MARK: Final = b"tenure-sealed-1:"
"""Begins a sealed secret. Other secrets were stored before there was a key."""
_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_NO_KEYS: Final = "{path} has no encryption keys of Tenure ({problem}); create it with `tenure keys encryption`"


class SecretBox:
    """Seals and opens secrets. `path` None: secrets are stored as they are.

    Reads the file again every `LOOK_SECONDS`, and for an unknown key.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._looked_at = monotonic()
        self._current, self._keys = ("", dict[str, AESGCM]()) if path is None else _ciphers(path)

    def seal(self, secret: bytes, owner: str) -> bytes:
        """Returns the sealed secret, which opens for this owner only."""
        self._look()
        if not self._current:
            return secret
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._keys[self._current].encrypt(nonce, secret, owner.encode())
        return _MARK + self._current.encode() + nonce + sealed

    def open(self, stored: bytes, owner: str) -> bytes:
        """Returns the secret. Raises Unavailable (SECRET_NOT_READABLE) without its key, or for another owner's."""
        if not stored.startswith(_MARK):
            return stored
        rest = stored.removeprefix(_MARK)
        key_id, nonce, sealed = _key_id(rest), rest[_ID_BYTES:][:_NONCE_BYTES], rest[_ID_BYTES + _NONCE_BYTES :]
        self._look(unknown=key_id not in self._keys)
        if key_id not in self._keys:
            message = f"a secret of {owner} is encrypted with the key {key_id}, which is not in the file of keys"
            raise Unavailable(message, reason=SECRET_NOT_READABLE)
        try:
            return self._keys[key_id].decrypt(nonce, sealed, owner.encode())
        except (InvalidTag, ValueError):  # ValueError: it is cut short
            message = f"a secret of {owner} was changed, or moved there from another place"
            raise Unavailable(message, reason=SECRET_NOT_READABLE) from None

    def is_current(self, stored: bytes) -> bool:
        """Whether the stored secret needs no other seal: it has the current key's, or there is no key."""
        if not self._current:
            return True
        return stored.startswith(_MARK) and _key_id(stored.removeprefix(_MARK)) == self._current

    def _look(self, *, unknown: bool = False) -> None:
        if self._path is None or (not unknown and monotonic() - self._looked_at < LOOK_SECONDS):
            return
        self._looked_at = monotonic()
        try:
            self._current, self._keys = _ciphers(self._path)
        except KeyFileError as error:
            if unknown:
                raise Unavailable(str(error), reason=SECRET_NOT_READABLE) from error


class _KeyFile(NamedTuple):
    """The content of a key file: the id of the key that seals, and all keys by id."""

    current: str
    keys: dict[str, bytes]

    @classmethod
    def read(cls, path: Path) -> _KeyFile:
        """Raises KeyFileError."""
        try:
            stored = json.loads(path.read_text())
            keys = {key_id: base64.b64decode(key, validate=True) for key_id, key in stored["keys"].items()}
            file = cls(str(stored["current"]), keys)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise KeyFileError([_NO_KEYS.format(path=path, problem=error)]) from error
        sizes = {(len(key_id), len(key)) for key_id, key in keys.items()}
        if file.current not in keys or sizes != {(_ID_BYTES, _KEY_BYTES)}:
            raise KeyFileError([_NO_KEYS.format(path=path, problem="a key is missing or has another length")])
        return file

    def write(self, path: Path) -> None:
        """Replaces the file; only its owner may read it."""
        fresh = path.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        keys = {key_id: base64.b64encode(key).decode() for key_id, key in self.keys.items()}
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
            json.dump({"current": self.current, "keys": keys}, file)
            file.flush()
            os.fsync(file.fileno())  # without its content after a power failure, all stored secrets would be lost
        fresh.replace(path)


def add_encryption_key(path: Path, key_id: str) -> None:
    """Adds a new key, which seals from now on. Creates the file. Raises KeyFileError."""
    keys = _KeyFile.read(path).keys if path.exists() else {}
    _KeyFile(key_id, {**keys, key_id: os.urandom(_KEY_BYTES)}).write(path)


def withdraw_encryption_key(path: Path, key_id: str) -> None:
    """Removes a key: the secrets that it sealed can no longer be read.

    Raises KeyFileError, and ValueError for the current key or an unknown one.
    """
    file = _KeyFile.read(path)
    if key_id == file.current:
        raise ValueError(f"{key_id} is the current key of {path}: add a new key first")
    if file.keys.pop(key_id, None) is None:
        raise ValueError(f"{path} has no key {key_id}")
    file.write(path)


def _ciphers(path: Path) -> tuple[str, dict[str, AESGCM]]:
    file = _KeyFile.read(path)
    return file.current, {key_id: AESGCM(key) for key_id, key in file.keys.items()}


def _key_id(rest: bytes) -> str:
    return rest[:_ID_BYTES].decode("ascii", "replace")
