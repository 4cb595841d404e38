"""Tasks' files: the ledger says whose a task is, the tools have what is in its workspace."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from services.gateway.peers import Peers, out_of_reach, patiently, read_task
from tenure.domain.errors import Unavailable
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools

READ_TIMEOUT_SECONDS: Final = 600.0
"""Of one stream: a reader that is slower goes on with another."""


async def list_files(peers: Peers, request: api.ListFilesRequest) -> api.ListFilesResponse:
    """A page. Raises NotFound, WrongState, InvalidRequest."""
    if not request.page_token:
        await read_task(peers, request.task_id)
    asked = tools.ToolServiceListFilesRequest(
        task_id=request.task_id, path=request.path, page_size=request.page_size, page_token=request.page_token
    )
    page = await patiently(lambda: peers.tools.ListFiles(asked))
    usage = page.usage if page.HasField("usage") else None
    return api.ListFilesResponse(files=page.files, next_page_token=page.next_page_token, usage=usage)


async def read_file(peers: Peers, request: api.ReadFileRequest) -> AsyncGenerator[api.ReadFileResponse, None]:
    """A file, part by part. Raises NotFound, WrongState, InvalidRequest, OutOfRange, LimitReached, Unavailable."""
    await read_task(peers, request.task_id)
    asked = tools.ToolServiceReadFileRequest(
        task_id=request.task_id, path=request.path, offset=request.offset, version=request.version
    )
    call = peers.tools.ReadFile(asked, timeout=READ_TIMEOUT_SECONDS)
    try:
        async with aclosing(_parts(call)) as parts:
            async for part in parts:
                yield part
    except Unavailable as error:
        raise out_of_reach(error) from error
    finally:
        call.cancel()


async def _parts(call: object) -> AsyncGenerator[api.ReadFileResponse, None]:
    async for part in call:  # type: ignore[attr-defined]  # grpcio types its calls by wrong names
        if part.WhichOneof("part") == "header":
            yield api.ReadFileResponse(header=part.header)
        else:
            yield api.ReadFileResponse(content=part.content)
