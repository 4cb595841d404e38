"""Sealed secrets: they open for their owner and with their key only, and keys change while they are there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.errors import Unavailable
from tenure.runtime.security import secret_box
from tenure.runtime.security.secret_box import SecretBox, add_encryption_key, withdraw_encryption_key
from tenure.runtime.security.signing import KeyFileError

OWNER = "acme|0192"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "encryption.json"
    add_encryption_key(path, "aaaaaaaa")
    return path


@pytest.fixture
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is read again with each use."""
    monkeypatch.setattr(secret_box, "LOOK_SECONDS", 0.0)
    path = tmp_path / "encryption.json"
    add_encryption_key(path, "aaaaaaaa")
    return path


@given(secret=st.binary(max_size=100), owner=st.text(max_size=20))
def test_a_sealed_secret_opens_and_does_not_show(keys: Path, secret: bytes, owner: str) -> None:
    box = SecretBox(keys)
    stored = box.seal(secret, owner)
    assert box.open(stored, owner) == secret
    assert len(secret) < 4 or secret not in stored[len(b"tenure-sealed-1:aaaaaaaa") :]
    assert stored != box.seal(secret, owner)
    assert box.is_current(stored)
    with pytest.raises(Unavailable):
        box.open(stored, f"{owner}x")


@given(position=st.integers(0, 60), bit=st.integers(0, 7))
def test_a_changed_seal_does_not_open(keys: Path, position: int, bit: int) -> None:
    box = SecretBox(keys)
    stored = bytearray(box.seal(b"x" * 24, OWNER))
    mark = len(b"tenure-sealed-1:")
    position = mark + position % (len(stored) - mark)
    stored[position] ^= 1 << bit
    with pytest.raises(Unavailable) as refused:
        box.open(bytes(stored), OWNER)
    assert refused.value.reason == "SECRET_NOT_READABLE"


@given(kept=st.integers(len(b"tenure-sealed-1:aaaaaaaa"), 70))
def test_a_seal_that_is_cut_short_does_not_open(keys: Path, kept: int) -> None:
    box = SecretBox(keys)
    stored = box.seal(b"x" * 24, OWNER)
    with pytest.raises(Unavailable):
        box.open(stored[: min(kept, len(stored) - 1)], OWNER)


def test_a_new_file_is_on_disk_before_it_takes_the_name(changing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    before = changing.read_text()

    def sync(descriptor: int) -> None:
        assert changing.read_text() == before
        (fresh,) = [path for path in changing.parent.iterdir() if path.stat().st_ino == os.fstat(descriptor).st_ino]
        synced.append(fresh.read_text())

    monkeypatch.setattr(os, "fsync", sync)
    add_encryption_key(changing, "bbbbbbbb")
    assert synced == [changing.read_text()]


def test_without_a_file_secrets_are_stored_as_they_are(keys: Path) -> None:
    open_box, box = SecretBox(None), SecretBox(keys)
    assert open_box.seal(b"secret", OWNER) == b"secret" == box.open(b"secret", OWNER)
    assert open_box.is_current(b"secret")
    assert not box.is_current(b"secret")
    with pytest.raises(Unavailable, match="aaaaaaaa"):
        open_box.open(box.seal(b"secret", OWNER), OWNER)


def test_a_new_key_takes_over_and_the_former_is_withdrawn(changing: Path) -> None:
    box, other = SecretBox(changing), SecretBox(changing)
    former = box.seal(b"secret", OWNER)
    add_encryption_key(changing, "bbbbbbbb")
    renewed = box.seal(b"secret", OWNER)
    assert not box.is_current(former)
    assert box.is_current(renewed)
    assert other.open(renewed, OWNER) == other.open(former, OWNER) == b"secret"
    with pytest.raises(ValueError, match="is the current key"):
        withdraw_encryption_key(changing, "bbbbbbbb")
    with pytest.raises(ValueError, match="cccccccc"):
        withdraw_encryption_key(changing, "cccccccc")
    withdraw_encryption_key(changing, "aaaaaaaa")
    assert box.open(renewed, OWNER) == b"secret"
    with pytest.raises(Unavailable):
        box.open(former, OWNER)


def test_a_file_that_breaks_later_changes_nothing(changing: Path) -> None:
    box = SecretBox(changing)
    stored = box.seal(b"secret", OWNER)
    changing.chmod(0o600)
    changing.write_text("{")
    assert box.open(box.seal(b"secret", OWNER), OWNER) == box.open(stored, OWNER) == b"secret"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        json.dumps({"current": "aaaaaaaa", "keys": {}}),
        json.dumps({"current": "aaaaaaaa", "keys": {"aaaaaaaa": "c2hvcnQ="}}),
        json.dumps({"current": "a", "keys": {"a": "A" * 43 + "="}}),
        json.dumps({"current": ["aaaaaaaa"], "keys": {"aaaaaaaa": "A" * 43 + "="}}),
    ],
)
def test_an_unusable_file_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "encryption.json"
    path.write_text(content)
    with pytest.raises(KeyFileError):
        SecretBox(path)


def test_only_the_owner_may_read_the_file(keys: Path) -> None:
    assert keys.stat().st_mode & 0o777 == 0o400
