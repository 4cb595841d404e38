"""The contract as written and the code generated from it are one."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "protos/generate.py", str(tmp_path)], cwd=ROOT, check=True)
    fresh = {path.name for path in (tmp_path / "tenure" / "v1").iterdir()}
    committed = {path.name for path in (ROOT / "tenure" / "v1").glob("*_pb2*")}
    assert fresh == committed, "run `make protos`"
    _, differing, failing = filecmp.cmpfiles(tmp_path / "tenure" / "v1", ROOT / "tenure" / "v1", fresh, shallow=False)
    assert differing + failing == [], "run `make protos`: these are not what protos/ say"
