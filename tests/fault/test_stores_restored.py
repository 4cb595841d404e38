"""Both stores lose their data in the middle of tasks and are restored from backups: nothing is lost or done twice.

Postgres is restored to its last commit (a base backup and the archived log), etcd to an older snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import psycopg
import pytest

from checker.collect import collect_tasks, read_effects
from checker.verify import examine
from devstack import Stack
from tenure.client import Client
from tenure.v1 import task_pb2
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_replicas import KEYED_EFFECTS
from tests.support.model_log import read_model_calls
from tests.support.patience import PATIENCE_SECONDS
from tests.support.rolling import ORDER
from tests.support.store_backup import StoreBackup

pytestmark = [pytest.mark.server, pytest.mark.timeout(400), pytest.mark.faults]

MODEL: Final = "sim-e2e-keyed-paced"


@pytest.fixture
async def install(tmp_path: Path) -> AsyncIterator[Installation]:
    tmp_path.chmod(0o755)
    async with Stack(options(tmp_path)) as stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)


@pytest.fixture
async def backup(install: Installation, tmp_path: Path) -> AsyncIterator[StoreBackup]:
    assert install.stack.postgres is not None
    assert install.stack.etcd is not None
    made = StoreBackup(install.stack.postgres, install.stack.etcd, tmp_path / "backup")
    await made.archive.start()
    yield made
    made.archive.stop()


async def submit(install: Installation, count: int) -> dict[str, str]:
    """Tasks by the file that their effects go to."""
    files = [uuid.uuid4().hex for _ in range(count)]
    return {file: await install.submit(MODEL, file) for file in files}


async def timeline(install: Installation) -> int:
    """A server that recovered from an archive begins another timeline."""
    async with await psycopg.AsyncConnection.connect(install.stack.postgres_dsn, autocommit=True) as postgres:
        row = await (await postgres.execute("select pg_walfile_name(pg_current_wal_lsn())")).fetchone()
    assert row is not None
    return int(row[0][:8], 16)


async def test_restored_stores_lose_no_task_and_repeat_nothing(install: Installation, backup: StoreBackup) -> None:
    tasks = await submit(install, 3)
    first = next(iter(tasks.values()))
    await install.until(first, "tool_outcome", lambda entry: entry.step == 1)
    await backup.take()
    tasks |= await submit(install, 3)  # no backup has them, only the archived log
    last = list(tasks.values())[-1]
    await install.until(last, "tool_outcome", lambda entry: entry.step == 2)
    for service in install.stack.services.values():
        service.kill()
    before = await timeline(install)
    await backup.restore()
    for kind in ORDER:
        for service in install.stack.workers if kind == "worker" else install.stack.replicas(kind):
            await service.restart()
    ended = [await install.client.wait(task_id, PATIENCE_SECONDS) for task_id in tasks.values()]
    assert await timeline(install) == before + 1
    await check(install, tasks, ended)


async def check(install: Installation, tasks: dict[str, str], ended: list[task_pb2.Task]) -> None:
    """All succeed, with each effect once, and the checker finds nothing."""
    layout = install.stack.layout
    history = replace(
        await collect_tasks(install.client, tasks.values()),
        effects=read_effects(layout.records),
        model_calls=read_model_calls(layout.model_log),
        settled=True,
    )
    assert examine(history).violations == ()
    assert {task.state for task in ended} == {task_pb2.TASK_STATE_SUCCEEDED}
    assert {file: sorted(install.effects(file)) for file in tasks} == dict.fromkeys(tasks, KEYED_EFFECTS)
