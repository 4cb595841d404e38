"""Node.js and the packages that tests run with it: real servers and clients that nobody here wrote."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent / "node" / "node_modules"


@pytest.fixture(scope="session")
def node() -> Path:
    """Node itself, of the wheel beside our interpreter; `PACKAGES` is where it finds its packages."""
    found = shutil.which("node", path=str(Path(sys.executable).parent))
    if found is None or not (PACKAGES / ".package-lock.json").exists():
        pytest.fail("Node or its packages are not installed: run `make node`")
    return Path(found)
