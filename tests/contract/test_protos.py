"""The contract as written and the code generated from it are one."""

from __future__ import annotations

import filecmp
import re
import subprocess
import sys
from pathlib import Path

from tenure.domain.notifications import SUMMARY_EVENT
from tenure.domain.webhooks import DEFAULT_EVENTS, KNOWN_EVENTS, MISSED_EVENT, TEST_EVENT

ROOT = Path(__file__).parents[2]


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "protos/generate.py", str(tmp_path)], cwd=ROOT, check=True)
    fresh = {path.name for path in (tmp_path / "tenure" / "v1").iterdir()}
    committed = {path.name for path in (ROOT / "tenure" / "v1").glob("*_pb2*")}
    assert fresh == committed, "run `make protos`"
    _, differing, failing = filecmp.cmpfiles(tmp_path / "tenure" / "v1", ROOT / "tenure" / "v1", fresh, shallow=False)
    assert differing + failing == [], "run `make protos`: these are not what protos/ say"


def test_each_webhook_event_is_listed_in_the_contract() -> None:
    contract = (ROOT / "protos/tenure/v1/webhook_service.proto").read_text(encoding="utf-8")
    types, defaults = (contract.split(mark)[1] for mark in ("ignore unknown types:", "Empty: task.succeeded"))
    listed = set(re.findall(r"(?:task|webhook)\.[a-z_]+", types.split("Any 2xx")[0]))
    assert listed == KNOWN_EVENTS | {TEST_EVENT, MISSED_EVENT, SUMMARY_EVENT}
    named = re.findall(r"[a-z_]+", "succeeded" + defaults.split(".\n")[0])
    assert {f"task.{name}" for name in named} == DEFAULT_EVENTS
