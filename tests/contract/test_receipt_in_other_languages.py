"""What docs/receipts.md says of verification is enough: a program in another language finds the same as we do."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.audit import Head
from tenure.domain.receipts import chain_of
from tenure.runtime.security.signing import Signer, write_key_pair
from tests.support.patience import CALL_SECONDS
from tests.support.receipt_lines import TASK, head_line, receipt_line, records

SCRIPT = Path(__file__).parents[2] / "examples" / "verify_receipt.mjs"
Verify = Callable[[list[str]], subprocess.CompletedProcess[str]]


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    write_key_pair(tmp_path / "private.json", tmp_path / "public.json", "one")
    return Signer.load(tmp_path / "private.json")


@pytest.fixture
def verify(tmp_path: Path, node: Path, signer: Signer) -> Verify:
    key = {"key_id": signer.key_id, "public_key": base64.b64encode(signer.public_key_bytes()).decode()}
    (tmp_path / "keys.jsonl").write_text(json.dumps(key))

    def run(lines: list[str]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "receipts.jsonl"
        file.write_bytes("".join(f"{line}\n" for line in lines).encode())
        command: list[str | Path] = [node, SCRIPT, tmp_path / "keys.jsonl", file]
        return subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)

    return run


def whole(signer: Signer) -> list[str]:
    chain = chain_of(records(3), Head())
    return [*(receipt_line(signer, one) for one in chain), head_line(signer, chain)]


def test_node_verifies_receipts(verify: Verify, signer: Signer) -> None:
    done = verify(whole(signer))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"] == TASK
    assert json.loads(done.stdout)["receipts"] == 3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: lines[:-1], "the head is missing"),
        (lambda lines: [*lines[:2], lines[3]], "other receipts"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "does not follow"),
        (lambda lines: [lines[0], *lines], "does not follow"),
        (lambda lines: [lines[0].replace("user/ann", "user/bob"), *lines[1:]], "signature"),
        (lambda lines: [lines[0].replace('"v":1', '"v":1.0'), *lines[1:]], "not a line"),
        (lambda lines: [lines[0].replace('{"key_id"', '{"key_id":"x","key_id"'), *lines[1:]], "not a line"),
        (lambda lines: [lines[0].replace('"one"', '"two"'), *lines[1:]], "unknown key"),
    ],
)
def test_node_refuses_changed_receipts(verify: Verify, signer: Signer, change: Any, problem: str) -> None:
    lines = whole(signer)
    changed = change(lines)
    assert changed != lines
    done = verify(changed)
    assert (done.returncode, problem in done.stderr) == (1, True), done.stderr
