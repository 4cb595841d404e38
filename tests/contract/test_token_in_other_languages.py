"""What docs/tokens.md says of verification is enough: a program in another language finds the same as we do."""

from __future__ import annotations

import base64
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.domain.fencing import Audience, Claims, compose_epoch
from tenure.runtime.security.signing import Signer, Verifier, write_key_pair
from tenure.wire.token import sign_claims
from tests.support.patience import CALL_SECONDS

SCRIPT = Path(__file__).parents[2] / "examples" / "verify_token.mjs"
EPOCH = compose_epoch(2**22 + 1, 2**40 - 3)  # no double holds it


@pytest.fixture
def files(tmp_path: Path, node: Path) -> dict[str, Path]:
    """A token and two keys, as `tenure leases` prints them."""
    public = tmp_path / "verifying.json"
    write_key_pair(tmp_path / "old.json", public, "old")
    write_key_pair(tmp_path / "new.json", public, "new")
    claims = Claims("leases/tables/ü", "acme", EPOCH, "0b0e", "holder-1", tools=("a", "b"), audiences=(Audience.LEASE,))
    token = sign_claims(Signer.load(tmp_path / "new.json"), claims, datetime.now(UTC))
    response = Verifier(public).public_keys().items()
    lines = [json.dumps({"key_id": key_id, "public_key": base64.b64encode(key).decode()}) for key_id, key in response]
    (tmp_path / "keys.jsonl").write_text("\n".join(lines))
    (tmp_path / "token").write_text(base64.b64encode(token.SerializeToString()).decode())
    return {"keys": tmp_path / "keys.jsonl", "token": tmp_path / "token", "node": node}


def verify(files: dict[str, Path], resource: str, tenant: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [files["node"], SCRIPT, files["keys"], files["token"], resource, tenant]
    return subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)


def test_node_reads_a_valid_token(files: dict[str, Path]) -> None:
    done = verify(files, "leases/tables/ü", "acme")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"epoch": str(EPOCH), "claim_id": "0b0e", "holder": "holder-1"}


@pytest.mark.parametrize(("resource", "tenant"), [("tasks/tables/ü", "acme"), ("leases/tables/ü", "other")])
def test_node_refuses_a_token_of_something_else(files: dict[str, Path], resource: str, tenant: str) -> None:
    done = verify(files, resource, tenant)
    assert (done.returncode, done.stderr.strip()) == (1, "WRONG_RESOURCE")


@pytest.mark.parametrize("change", ["claims", "key", "cut"])
def test_node_refuses_a_token_that_was_tampered_with(files: dict[str, Path], change: str) -> None:
    raw = bytearray(base64.b64decode(files["token"].read_text()))
    if change == "claims":
        raw[raw.index(b"holder-1") + 7] ^= 1
    elif change == "cut":
        del raw[-1]
    else:
        lines = files["keys"].read_text().splitlines()
        files["keys"].write_text("\n".join(line for line in lines if '"new"' not in line))
    files["token"].write_text(base64.b64encode(raw).decode())
    done = verify(files, "leases/tables/ü", "acme")
    assert done.returncode == 1
    assert done.stderr.startswith("INVALID_TOKEN")
