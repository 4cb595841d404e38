"""`python3 deploy/install.py run|develop`: installs a set of locked releases into .venv; `run` also Tenure itself.

uv installs, because it takes seconds where pip takes minutes. It is a locked release itself, which pip installs. This
runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
VENV: Final = ROOT / ".venv"
PYTHON: Final = VENV / "bin" / "python"
UV: Final = VENV / "bin" / "uv"
CHECK_LOCK: Final = "deploy/requirements-check.lock"
SETS: Final = {
    "run": (
        ("deploy/requirements.lock", "deploy/requirements-dev.lock"),
        "Tenure, etcd, Postgres and bubblewrap, which `make demo` and `make dev` run",
    ),
    "develop": ((CHECK_LOCK,), "what tests, checks and docs need besides"),
}
"""The locks of each set, and what they bring. `develop` is installed after `run`."""
EDITABLE: Final = ("--no-build-isolation", "--editable", str(ROOT))
LISTED: Final = (" + ", " - ", " ~ ")
"""The beginnings of uv's lines that name one package each."""


def releases(lock: str) -> list[str]:
    """Returns the blocks of a lock: each is a release with its marker, its hashes, and what requires it."""
    return [block.strip() for block in re.split(r"\n(?=\S)", lock) if re.match(r"[a-zA-Z0-9]", block)]


def install(name: str) -> None:
    """Installs the set of this name, and says what it does, how long it took and what is on the disk."""
    since = time.monotonic()
    locks, what = SETS[name]
    blocks = [block for lock in locks for block in releases((ROOT / lock).read_text())]
    print(
        f"Installing into .venv: {what}. Packages: {len(blocks)}, with the hashes in {' and '.join(locks)}.", flush=True
    )
    make_environment()
    reason = install_uv((ROOT / CHECK_LOCK).read_text())
    if not reason and not _with_uv(name, blocks):
        reason = "it failed, see above"
    if reason:
        print(f"uv cannot be used here: {reason}. pip installs instead, which takes minutes.", flush=True)
        _pip(*_locked([block for block in blocks if not block.startswith("uv==")]))
        if name == "run":
            _pip(*EDITABLE)
    seconds = time.monotonic() - since
    print(f"Installed in {seconds:.0f} s: .venv takes {megabytes(VENV)} MB, and `make clean` deletes it.", flush=True)
    if not reason:
        print(f"Downloads are kept in {_uv_cache()}, and `.venv/bin/uv cache clean` deletes them.", flush=True)


def make_environment() -> None:
    """Makes the virtual environment, unless one is there whose Python runs."""
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", ""], check=False).returncode:
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)


def install_uv(lock: str) -> str:
    """Installs the locked release of uv, unless it is there. Returns why it cannot be installed, or ""."""
    (release,) = (block for block in releases(lock) if block.startswith("uv=="))
    version = release.split()[0].removeprefix("uv==")
    if list(VENV.glob(f"lib/python*/site-packages/uv-{version}.dist-info/RECORD")):
        return ""
    # Without a wheel for this platform it would be compiled, which takes longer than it saves.
    command: list[str | Path] = [PYTHON, "-m", "pip", "install", "--quiet", "--only-binary", "uv", *_locked([release])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (errors or [f"pip ended with code {done.returncode}"])[-1]


def _locked(blocks: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments that install these releases only, and only with their hashes."""
    file = VENV / "installed.lock"
    file.write_text("\n".join(blocks))
    return "--require-hashes", "--requirement", str(file)


def _with_uv(name: str, blocks: Sequence[str]) -> bool:
    """Returns whether uv installed the set. What Tenure runs with is compiled once, or each process would do it."""
    if name != "run":
        return _uv(*_locked(blocks))
    return _uv("--compile-bytecode", *_locked(blocks)) and _uv(*EDITABLE)


def _uv(*arguments: str) -> bool:
    """Returns whether `uv pip install` succeeded. Shows its progress, without its line for each package."""
    command: list[str | Path] = [UV, "pip", "install", "--no-deps", "--python", PYTHON, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as installing:
        assert installing.stderr is not None
        for line in installing.stderr:
            if not line.startswith(LISTED):
                print(f"  {line.strip()}", flush=True)
    return installing.returncode == 0


def _pip(*arguments: str) -> None:
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", *arguments], check=True)


def _uv_cache() -> str:
    return subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()


def megabytes(folder: Path) -> int:
    """Returns the space on the disk that the files of a folder take."""
    files = (Path(parent) / name for parent, _folders, names in os.walk(folder) for name in names)
    return round(sum(file.lstat().st_blocks * 512 for file in files) / 1e6)


if __name__ == "__main__":
    try:
        install(sys.argv[1])
    except subprocess.CalledProcessError as failure:
        sys.exit(f"Nothing more is installed, because a command failed: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
