"""Reads the files of a task's workspace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.client.reconnect import StreamReconnect
from tenure.domain.errors import TryLater
from tenure.v1 import task_service_pb2 as api

if TYPE_CHECKING:
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub
    from tenure.v1.workspace_pb2 import FileHeader


async def read_file(stub: TaskServiceAsyncStub, task_id: str, path: str) -> AsyncGenerator[bytes]:
    """Yields the content of one version of a file. Resumes a broken stream at the same offset.

    Raises NotFound and WrongState: FILE_CHANGED when the file was written meanwhile, or NOT_A_FILE.
    """
    request = api.ReadFileRequest(task_id=task_id, path=path)
    header: FileHeader | None = None
    reconnect = StreamReconnect()
    while header is None or request.offset < header.size_bytes:
        try:
            async for part in stub.ReadFile(request):
                reconnect.succeeded()
                if part.HasField("header"):
                    header = header or part.header
                    request.version = header.version
                else:
                    request.offset += len(part.content)
                    yield part.content
        except TryLater as error:
            if header is None:
                raise
            await reconnect.wait(error)


async def download_file(stub: TaskServiceAsyncStub, task_id: str, path: str, target: Path) -> int:
    """Writes a file's content to `target` and returns its size in bytes. Replaces an existing file.

    `target` appears only when it is complete: a failed download leaves nothing. Raises OSError, and the errors of
    read_file.
    """
    # Without the name of the target, which may fill the longest name that a file system takes.
    descriptor, unfinished = tempfile.mkstemp(prefix=".tenure-", dir=target.parent)
    try:
        size_bytes = 0
        with os.fdopen(descriptor, "wb") as file:
            async with aclosing(read_file(stub, task_id, path)) as parts:
                async for part in parts:
                    size_bytes += file.write(part)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        _rename(unfinished, target)
    except BaseException:
        _remove(unfinished)
        raise
    return size_bytes


def _umask() -> int:
    """Returns the umask. The only way to read it is to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _rename(path: str, target: Path) -> None:
    Path(path).replace(target)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)
