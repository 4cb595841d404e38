"""The wheel, and environments in which it is installed as users install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deploy.supply_chain import LOCKS

ROOT: Final = Path(__file__).parents[2]
UNREACHED: Final = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ProxyError",
    "ReadTimeoutError",
)
"""What pip says if it does not reach its package index."""
BUILD_SECONDS: Final = 120
INSTALL_SECONDS: Final = 480


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip. `wheels`: a folder with those that were installed."""

    folder: Path
    wheels: Path

    def program(self, name: str) -> str:
        """The path of a program of the environment."""
        return str(self.folder / "bin" / name)

    def run(self, *command: str, cwd: Path, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment to its end, outside of the repository."""
        assert not cwd.resolve().is_relative_to(ROOT)
        return subprocess.run(
            [self.program(command[0]), *command[1:]],
            cwd=cwd,
            env=variables(),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def files(self) -> list[Path]:
        """All installed files of packages, without those that Python compiled."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return [path for path in packages.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def variables() -> dict[str, str]:
    """The environment of a user: nothing of the repository's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TENURE_", "VIRTUAL"))}


def build(folder: Path) -> Path:
    """Builds the source distribution, and from it the wheel, and returns the wheel."""
    _check([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)], BUILD_SECONDS)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, extras: Sequence[str], folder: Path, *, compiled: bool) -> Environment:
    """Installs the wheel with these extras and the locked releases of what it needs, in a new environment.

    Skips the test if pip does not reach its index.
    """
    made = Environment(folder / "environment", folder / "wheels")
    venv.create(made.folder, with_pip=False)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(_locked()))
    required = f"tenure[{','.join(extras)}] @ {wheel.as_uri()}"
    pip = [sys.executable, "-m", "pip", "--python", made.program("python")]
    # One package has a source distribution only, so wheels are built, not only downloaded.
    _pip([*pip, "wheel", "--wheel-dir", str(made.wheels), "--constraint", str(constraints), required])
    offline = ["--no-index", "--find-links", str(made.wheels)]
    _pip([*pip, "install", *offline, *([] if compiled else ["--no-compile"]), required])
    return made


def _locked() -> list[str]:
    """The locked releases, without their hashes: pip demands hashes of all packages or of none."""
    lines = [line for name in LOCKS for line in (ROOT / name).read_text().splitlines()]
    return [line.rstrip(" \\") for line in lines if re.match(r"[a-zA-Z0-9]", line)]


def _pip(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    if done.returncode and any(words in done.stdout + done.stderr for words in UNREACHED):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stdout + done.stderr


def _check(command: list[str], seconds: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
