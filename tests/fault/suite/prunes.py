"""An operator who prunes: a task of his own is worked on, ends, goes, and nothing of it is left anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar
from uuid import uuid4

import psycopg

from tenure.client import Client
from tenure.domain.errors import NotFound, TryLater
from tenure.v1 import admin_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.fault.suite.installation import DATABASE, Installation
from tests.fault.suite.scenarios import model_of
from tests.fault.suite.schedule import PlannedFault
from tests.support.patience import PATIENCE_SECONDS

T = TypeVar("T")
PAUSE_SECONDS: Final = 0.1
HURRIED: Final = "hurried"


async def prune(install: Installation, fault: PlannedFault) -> None:
    """Whatever dies on the way. Returns when the files are gone, which are the last to go.

    With the detail HURRIED no worker waits for the pause that grows with every crash.
    """
    user = install.users[0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        spec = api.SubmitTaskRequest(
            request_id=uuid4().hex,
            spec=task_pb2.TaskSpec(goal="pruned", agent=task_pb2.AgentSpec(model=model_of("files"))),
        )
        task_id = (await until_answered(lambda: user.submit("pruned", request=spec))).task_id
        await until_answered(lambda: user.wait(task_id))
        files = install.stack.layout.workspaces / "default" / task_id
        assert files.is_dir()
        await until_answered(
            lambda: user.admin.PruneTasks(
                admin_service_pb2.PruneTasksRequest(task_id=task_id, reason="to see what is left")
            )
        )
        await _refused(user, task_id)
        while files.exists():
            if fault.detail == HURRIED:
                await _offered_again(install, task_id)
            await asyncio.sleep(PAUSE_SECONDS)


async def _offered_again(install: Installation, task_id: str) -> None:
    async with await psycopg.AsyncConnection.connect(install.postgres.dsn(DATABASE), autocommit=True) as postgres:
        await postgres.execute("update ledger.prunings set offered_until = null where task_id = %s", (task_id,))


async def _refused(user: Client, task_id: str) -> None:
    try:
        await until_answered(lambda: user.get(task_id))
    except NotFound:
        return
    raise AssertionError("a pruned task is still there")


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """As a client does after an error that says try later."""
    while True:
        with suppress(TryLater):
            return await ask()
        await asyncio.sleep(PAUSE_SECONDS)
