"""A user who forks a task that has files: whatever dies on the way, there is one fork, and its copy is whole."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.fault.suite.installation import Installation
from tests.fault.suite.prunes import until_answered
from tests.fault.suite.scenarios import model_of
from tests.fault.suite.schedule import PlannedFault
from tests.support.patience import PATIENCE_SECONDS


async def fork(install: Installation, _fault: PlannedFault) -> None:
    """Returns when the fork has ended."""
    user = install.users[0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        spec = api.SubmitTaskRequest(
            request_id=uuid4().hex,
            spec=task_pb2.TaskSpec(goal="forked", agent=task_pb2.AgentSpec(model=model_of("files"))),
        )
        task_id = (await until_answered(lambda: user.submit("forked", request=spec))).task_id
        await until_answered(lambda: user.wait(task_id))
        request = api.ForkTaskRequest(request_id=uuid4().hex, task_id=task_id, message="and now?")
        forked = await until_answered(lambda: user.fork(request))
        again = await until_answered(lambda: user.fork(request))
        assert again.task_id == forked.task_id
        files = install.stack.layout.workspaces / "default"
        assert names(files / task_id) <= names(files / forked.task_id)
        await until_answered(lambda: user.wait(forked.task_id))


def names(directory: Path) -> set[str]:
    names = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    assert names, "the task should have written files"
    return names
