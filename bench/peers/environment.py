"""The peers' own environment: a virtual environment and the Restate server, installed from PyPI and npm.

The project's environment stays as it is. A second call installs nothing.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.peers import RESTATE_SERVER, RESTATE_SERVER_VERSION, Peer
from bench.run import Tell

_UNREACHABLE: Final = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|NameResolutionError|SSLError"
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT"
)
_PLATFORMS: Final = {
    ("Linux", "x86_64"): "linux-x64",
    ("Linux", "aarch64"): "linux-arm64",
    ("Darwin", "arm64"): "darwin-arm64",
    ("Darwin", "x86_64"): "darwin-x64",
}


class NotInstalledError(Exception):
    """A package of a peer cannot be installed. The message is a sentence.

    `is_unreachable`: because its registry cannot be reached.
    """

    def __init__(self, sentence: str, *, is_unreachable: bool = False) -> None:
        super().__init__(sentence)
        self.is_unreachable = is_unreachable


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment in `folder`."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def temporal(self) -> Path:
        return self.folder / "venv" / "bin" / "temporal"

    @property
    def restate_server(self) -> Path:
        return self.folder / "node" / "node_modules" / f"{RESTATE_SERVER}-{_platform()}" / "bin" / "restate-server"

    def install(self, peer: Peer, tell: Tell) -> None:
        """Installs what the peer needs, unless it is there. Raises NotInstalledError."""
        stamp = self.folder / f"{peer.name}.json"
        wanted = json.dumps([*peer.packages, _server_package() if peer.npm_package else ""])
        if stamp.exists() and stamp.read_text() == wanted:
            return
        tell(f"installing {peer.title} into {self.folder}")
        self._create()
        python = str(self.python)
        _run(
            peer,
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--retries",
                "1",
                *peer.packages,
            ],
        )
        if peer.npm_package:
            prefix = self.folder / "node"
            prefix.mkdir(exist_ok=True)
            _run(peer, [_npm(), "install", "--prefix", str(prefix), *_NPM_OPTIONS, _server_package()])
        stamp.write_text(wanted)

    def _create(self) -> None:
        if not self.python.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", str(self.folder / "venv")], check=True)


_NPM_OPTIONS: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error", "--fetch-retries", "1")


def _platform() -> str:
    return _PLATFORMS.get((platform.system(), platform.machine()), "linux-x64")


def _server_package() -> str:
    return f"{RESTATE_SERVER}-{_platform()}@{RESTATE_SERVER_VERSION}"


def _npm() -> str:
    """Returns the project's npm, or else the one on the path."""
    beside = Path(sys.executable).with_name("npm")
    return str(beside) if beside.exists() else shutil.which("npm") or "npm"


def _run(peer: Peer, command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotInstalledError(f"{peer.title} cannot be installed: {command[0]} does not start ({error}).") from error
    if done.returncode == 0:
        return
    unreachable = _UNREACHABLE.search(done.stderr)
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no output")
    packages = ", ".join(part for part in command if "==" in part or part.startswith("@"))
    raise NotInstalledError(
        f"{peer.title} cannot be installed from its registry ({packages}): {unreachable[0] if unreachable else last}",
        is_unreachable=unreachable is not None,
    )
