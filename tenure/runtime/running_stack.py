"""Finds the development stack that runs on a data directory, by the file `dev.json` that the stack keeps there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

FILE_NAME: Final = "dev.json"
CERTIFICATES: Final = "certificates"
"""The key of the certificates' folder in dev.json, for a stack with TLS."""
SIMULATOR: Final = "simulator"
"""The key of the simulator's URL in dev.json, for a stack whose model is simulated."""


def read_addresses(data_dir: Path) -> dict[str, str] | None:
    """Returns the addresses of the stack that runs on this folder, or None if none runs."""
    try:
        stored = json.loads((data_dir / FILE_NAME).read_text(encoding="utf-8"))
        pid = int(stored.pop("pid"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return {str(name): str(address) for name, address in stored.items()} if _is_running(pid) else None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it is another user's process
    except OSError:
        return False
    return True
