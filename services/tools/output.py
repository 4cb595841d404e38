"""Truncates a tool's output: the model reads its beginning and its end, the workspace keeps all of it.

The file is written before the outcome is recorded, and its name contains the call attempt: a runner that was declared
dead but lives on cannot change the file that the record of a later attempt refers to.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from services.tools.tool import ToolFailure
from services.tools.workspace.bounds import Bounds
from services.tools.workspace.directories import TEMPORARY, Workspaces, entered, write_file
from tenure.domain.images import Image, read_header
from tenure.domain.texts import kept_as
from tenure.domain.tools import encode

_log: Final = logging.getLogger(__name__)
DIRECTORY: Final = "outputs"
MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of one output that the workspace keeps; the rest is lost."""

_MARKER: Final = "\n[cut here: {missing} of {whole} bytes are left out. {where}]\n"
_NOT_KEPT: Final = "They were not kept."
_LONGEST_MARKER: Final = 300


@dataclass(frozen=True, slots=True)
class BoundedOutput:
    """Output for the model. `path`: the file in the workspace that has all of the output, "" for none."""

    content: str
    truncated: bool = False
    path: str = ""


class OutputStore:
    """Stores output that is too long for the model in the workspaces. Its methods block: call them in a thread."""

    def __init__(self, workspaces: Workspaces, bounds: Bounds) -> None:
        self._workspaces, self._bounds = workspaces, bounds

    def show(self, content: str, limit_bytes: int, tenant: str, task_id: str, name: str) -> BoundedOutput:
        """Returns the content as valid text of about `limit_bytes` at most, and stores all of it if it is longer.

        When the file cannot be written, only a log line and the marker in the text say so.
        """
        encoded = encode(content)
        if len(encoded) <= limit_bytes:
            return BoundedOutput(encoded.decode())
        path = f"{DIRECTORY}/{name}.txt"
        try:
            self.keep(encoded, tenant, task_id, path)
        except (OSError, ToolFailure) as error:
            _log.warning("a long output could not be stored in the workspace: %s", error, extra={"output": name})
            return BoundedOutput(shorten(encoded, limit_bytes, _NOT_KEPT), truncated=True)
        where = f"All of it is in the workspace's file {path}; read_file shows any part of it."
        if len(encoded) > MAX_KEPT_BYTES:
            first = f"The first {MAX_KEPT_BYTES} bytes"
            where = where.replace("All of it is", f"{first} are")
        return BoundedOutput(shorten(encoded, limit_bytes, where), truncated=True, path=path)

    def keep_image(self, content: bytes, tenant: str, task_id: str, call: str) -> Image:
        """Stores an image that models can be shown, under its digest. `call`: unique to the run that returned it.

        Raises NotAnImage, OSError, and ToolFailure when the workspace is full.
        """
        header, kept = read_header(content), kept_as(content)
        self.keep(content, tenant, task_id, kept.path, temporary=call)
        return Image(kept, *header)

    def keep(self, content: bytes, tenant: str, task_id: str, path: str, *, temporary: str = "") -> None:
        """Stores up to MAX_KEPT_BYTES of the content as a file in the workspace's `outputs` directory.

        `temporary`: the file's name until it is complete; "": its own. Raises OSError, and ToolFailure when the
        workspace is full.
        """
        kept = content[:MAX_KEPT_BYTES]
        self._bounds.check_room(self._workspaces.directory(tenant, task_id), len(kept), more_files=2)
        directory, name = path.split("/")
        with (
            self._workspaces.opened(tenant, task_id) as workspace,
            entered(workspace, (directory,), make=True) as inside,
        ):
            write_file(name, kept, inside, workspace, temporary=f"{TEMPORARY}{temporary or name}")


def shorten(encoded: bytes, limit_bytes: int, where: str) -> str:
    """Returns the beginning of the output, a marker with the missing bytes and `where`, and the end.

    Three quarters of the space go to the beginning, one quarter to the end.
    """
    kept = max(0, limit_bytes - _LONGEST_MARKER)
    head = encoded[: kept - kept // 4].decode("utf-8", errors="ignore")
    tail = encoded[len(encoded) - kept // 4 :].decode("utf-8", errors="ignore")
    missing = len(encoded) - len(head.encode()) - len(tail.encode())
    return head + _MARKER.format(missing=missing, whole=len(encoded), where=where) + tail
