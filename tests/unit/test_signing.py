"""Tokens and keys: what was signed verifies as long as its key stands in the file, and no longer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.domain.errors import Unauthenticated, Unavailable
from tenure.runtime.security.signing import SignedBytes, Signer, Verifier, write_key_pair


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The public file of one key, "first"."""
    public = tmp_path / "verifying.json"
    write_key_pair(tmp_path / "first.json", public, "first")
    return public


def signed(keys: Path, key_id: str) -> SignedBytes:
    return Signer.load(keys.with_name(f"{key_id}.json")).sign(b"claims")


def keep_only(keys: Path, key_id: str) -> None:
    kept = [key for key in json.loads(keys.read_text())["keys"] if key["key_id"] == key_id]
    fresh = keys.with_name("fresh.json")
    fresh.write_text(json.dumps({"keys": kept}))
    fresh.replace(keys)


def test_only_signed_tokens_verify(keys: Path) -> None:
    verifier, token = Verifier(keys), signed(keys, "first")
    verifier.check(token)
    for forged in (token._replace(claims=b"other"), token._replace(signature=bytes(64)), token._replace(key_id="x")):
        with pytest.raises(Unauthenticated):
            verifier.check(forged)


def test_a_new_key_is_taken_up_when_its_first_token_comes(keys: Path) -> None:
    verifier = Verifier(keys)
    write_key_pair(keys.with_name("second.json"), keys, "second")
    verifier.check(signed(keys, "second"))
    verifier.check(signed(keys, "first"))


def test_a_withdrawn_key_verifies_nothing(keys: Path) -> None:
    write_key_pair(keys.with_name("second.json"), keys, "second")
    verifier, token = Verifier(keys, look_seconds=0.0), signed(keys, "first")
    verifier.check(token)
    keep_only(keys, "second")
    with pytest.raises(Unauthenticated):
        verifier.check(token)


def test_a_key_replaced_under_its_id_verifies_nothing(keys: Path) -> None:
    verifier, token = Verifier(keys, look_seconds=0.0), signed(keys, "first")
    verifier.check(token)
    other = keys.with_name("other.json")
    write_key_pair(keys.with_name("other_private.json"), other, "first")
    other.replace(keys)
    with pytest.raises(Unauthenticated):
        verifier.check(token)


def test_an_unreadable_key_file_changes_nothing(keys: Path) -> None:
    verifier, token = Verifier(keys, look_seconds=0.0), signed(keys, "first")
    unknown = token._replace(key_id="second")
    keys.write_text('{"keys": [')
    verifier.check(token)
    with pytest.raises(Unavailable):
        verifier.check(unknown)
    keys.unlink()
    verifier.check(token)


def test_a_reader_never_finds_half_of_the_file(keys: Path) -> None:
    with keys.open() as held:
        write_key_pair(keys.with_name("second.json"), keys, "second")
        assert [key["key_id"] for key in json.load(held)["keys"]] == ["first"]
