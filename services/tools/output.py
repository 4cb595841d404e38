"""Bounding what a tool says: the model is shown the beginning and the end, and all of it stays in the workspace.

The file is written before the outcome is recorded, under a name of the attempt's own: a runner that was thought dead
cannot change the file that the record of a later attempt speaks of.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from services.tools.tool import ToolFailure
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.directories import TEMPORARY, Workspaces, entered, write_file
from tenure.domain.truncation import encode

_log: Final = logging.getLogger(__name__)
DIRECTORY: Final = "outputs"
MOST_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of one output: what is beyond is not kept anywhere."""

_MARKER: Final = "\n[cut here: {missing} of {whole} bytes are left out. {where}]\n"
_NOT_KEPT: Final = "They were not kept."
_LONGEST_MARKER: Final = 300


@dataclass(frozen=True, slots=True)
class BoundedOutput:
    """What the model reads; `path`: the workspace's file with all of it, "" for none."""

    content: str
    truncated: bool = False
    path: str = ""


class OutputKeeper:
    """Keeps what is too long in the workspaces. Blocks: call it in a thread."""

    def __init__(self, workspaces: Workspaces, bounds: Bounds) -> None:
        self._workspaces, self._bounds = workspaces, bounds

    def show(self, content: str, limit_bytes: int, tenant: str, task_id: str, name: str) -> BoundedOutput:
        """The content as valid text of about `limit_bytes` at most. Whether it can be kept decides nothing else."""
        encoded = encode(content)
        if len(encoded) <= limit_bytes:
            return BoundedOutput(encoded.decode())
        path = f"{DIRECTORY}/{name}.txt"
        try:
            self.keep(encoded, tenant, task_id, path)
        except (OSError, ToolFailure) as error:
            _log.warning("a long output was not kept: %s", error, extra={"output": name})
            return BoundedOutput(shorten(encoded, limit_bytes, _NOT_KEPT), truncated=True)
        kept = f"All of it is in the workspace's file {path}; read_file shows any part of it."
        if len(encoded) > MOST_KEPT_BYTES:
            first = f"The first {MOST_KEPT_BYTES} bytes"
            kept = kept.replace("All of it is", f"{first} are")
        return BoundedOutput(shorten(encoded, limit_bytes, kept), truncated=True, path=path)

    def keep(self, content: bytes, tenant: str, task_id: str, path: str) -> None:
        """What of it is kept at all, as a file of the workspace's directory `DIRECTORY`. Raises OSError, ToolFailed."""
        kept = content[:MOST_KEPT_BYTES]
        self._bounds.check_room(self._workspaces.directory(tenant, task_id), len(kept), more_files=2)
        directory, name = path.split("/")
        with (
            self._workspaces.opened(tenant, task_id) as workspace,
            entered(workspace, (directory,), make=True) as inside,
        ):
            write_file(name, kept, inside, workspace, temporary=f"{TEMPORARY}{name}")


def shorten(encoded: bytes, limit_bytes: int, where: str) -> str:
    """Three quarters of what fits from the beginning, one from the end, between them what is missing, and `where`."""
    kept = max(0, limit_bytes - _LONGEST_MARKER)
    head = encoded[: kept - kept // 4].decode("utf-8", errors="ignore")
    tail = encoded[len(encoded) - kept // 4 :].decode("utf-8", errors="ignore")
    missing = len(encoded) - len(head.encode()) - len(tail.encode())
    return head + _MARKER.format(missing=missing, whole=len(encoded), where=where) + tail
