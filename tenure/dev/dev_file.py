"""`dev.json`: how others on this machine find a stack that runs here."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "dev.json"


def write_addresses(data_dir: Path, addresses: dict[str, str]) -> None:
    """Tells where everything is; readers see the old file or the new one, never half of it."""
    path = data_dir / FILE_NAME
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"pid": os.getpid(), **addresses}, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def read_addresses(data_dir: Path) -> dict[str, str] | None:
    """What a running stack wrote, or None when none runs on this folder."""
    try:
        stored = json.loads((data_dir / FILE_NAME).read_text(encoding="utf-8"))
        pid = int(stored.pop("pid"))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return {str(name): str(address) for name, address in stored.items()} if _lives(pid) else None


def forget_addresses(data_dir: Path) -> None:
    """The stack is gone."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's, but there
    except OSError:
        return False
    return True
