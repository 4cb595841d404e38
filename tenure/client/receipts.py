"""Verifies receipts with public keys, without any service.

keys = read_keys(Path("keys.jsonl").read_text())          # `tenure --json leases keys > keys.jsonl`
verified = verify_receipts(lines, signature_check(keys))   # of tenure.domain.receipts
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tenure.domain.receipts import CheckSignature


def read_keys(text: str) -> dict[str, bytes]:
    """Returns public keys by key id: lines of `tenure --json leases keys`, or a file of verifying keys.

    Raises ValueError.
    """
    try:
        whole = (
            [json.loads(line) for line in text.splitlines() if line.strip()] if _has_lines(text) else [json.loads(text)]
        )
        items = [item for part in whole for item in part.get("keys", [part])]
        keys = {item["key_id"]: base64.b64decode(item["public_key"], validate=True) for item in items}
        for key in keys.values():
            Ed25519PublicKey.from_public_bytes(key)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not public keys of Tenure ({error}); `tenure --json leases keys` writes them") from error
    return keys


def _has_lines(text: str) -> bool:
    """Whether each line is an object: a file of verifying keys is one object on several lines."""
    return text.lstrip().split("\n", 1)[0].rstrip().endswith("}")


def signature_check(keys: Mapping[str, bytes]) -> CheckSignature:
    """Returns the check of signatures by these keys. It raises ValueError for an unknown key and a wrong signature."""

    def check(key_id: str, signature: bytes, signed: bytes) -> None:
        if key_id not in keys:
            raise ValueError(f"it is signed with the key {key_id!r}, which is not among the public keys")
        try:
            Ed25519PublicKey.from_public_bytes(keys[key_id]).verify(signature, signed)
        except InvalidSignature:
            raise ValueError("the signature does not match") from None

    return check
