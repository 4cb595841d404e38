"""Ports of the stack, and the file that tells others where it is."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
USUAL_PORTS: Final = {"gateway": 8470, "coordinator": 8471, "checkpoint": 8472, "tools": 8473, "simulator": 8476}
FILE_NAME: Final = "dev.json"


def choose_address(service: str, *, usual: bool) -> str:
    """host:port of the usual port when it is wanted and free, of any free one otherwise."""
    port = USUAL_PORTS.get(service, 0) if usual else 0
    for candidate in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, candidate))
            except OSError:
                continue
            return f"{HOST}:{probe.getsockname()[1]}"
    raise OSError(f"no free port on {HOST}")


def write_addresses(data_dir: Path, addresses: dict[str, str]) -> None:
    """Tells where everything is; readers see the old file or the new one, never half of it."""
    path = data_dir / FILE_NAME
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"pid": os.getpid(), **addresses}, indent=2) + "\n")
    draft.replace(path)


def read_addresses(data_dir: Path) -> dict[str, str] | None:
    """What a running stack wrote, or None when none runs on this folder."""
    try:
        stored = json.loads((data_dir / FILE_NAME).read_text())
        os.kill(int(stored.pop("pid")), 0)
    except (OSError, ValueError, KeyError):
        return None
    return {str(name): str(address) for name, address in stored.items()}


def forget_addresses(data_dir: Path) -> None:
    """The stack is gone."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)
