"""ForkTask: the id first, then the files under it, then the task that may run.

So no fork ever runs without its files, and whoever dies in between leaves an id that the ledger gives up in time, and
files that the tools remove then. The same fork, asked for again, has the same id, and its files are not copied again.
"""

from __future__ import annotations

from typing import Final

from services.gateway.peers import Peers, patiently
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools

COPY_TIMEOUT_SECONDS: Final = 120.0


async def fork_task(
    peers: Peers, asked: ledger.CheckpointServiceForkTaskRequest, *, with_files: bool
) -> api.ForkTaskResponse:
    """Raises what the ledger says, and WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE) of files."""
    if not with_files:
        return api.ForkTaskResponse(task=(await patiently(lambda: peers.checkpoint.ForkTask(asked))).task)
    prepare = ledger.PrepareForkRequest(fork=asked)
    prepared = await patiently(lambda: peers.checkpoint.PrepareFork(prepare))
    if prepared.WhichOneof("result") == "task":
        return api.ForkTaskResponse(task=prepared.task)
    copy = tools.CopyFilesRequest(from_task_id=asked.task_id, task_id=prepared.prepared_task_id)
    done = await patiently(lambda: peers.tools.CopyFiles(copy, timeout=COPY_TIMEOUT_SECONDS))
    fork = ledger.CheckpointServiceForkTaskRequest()
    fork.CopyFrom(asked)
    fork.prepared_task_id = prepared.prepared_task_id
    task = (await patiently(lambda: peers.checkpoint.ForkTask(fork))).task
    made_now = task.task_id == prepared.prepared_task_id and done.HasField("copied")
    return api.ForkTaskResponse(task=task, copied=done.copied if made_now else None)
