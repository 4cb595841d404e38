"""The outbox with a gateway: each committed submit becomes one task, although its relay is killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from edges.outbox.rows import schema
from tenure.sdk.task_filter import task_filter
from tests.end_to_end.installation import Installation
from tests.support.fix_postgres import FreshDatabase
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SUBMITS = 12


async def relay(installation: Installation, dsn: str) -> asyncio.subprocess.Process:
    """A relay as a process; the gateway is known."""
    command = ["-m", "tenure.cli", "outbox", "relay", "--dsn", dsn, "--url", installation.stack.http_url]
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, env=dict(os.environ), stderr=asyncio.subprocess.PIPE
    )


async def test_killed_relay_loses_and_repeats_nothing(
    installation: Installation, fresh_database: FreshDatabase
) -> None:
    dsn, later = await fresh_database(), (datetime.now(UTC) + timedelta(days=300)).isoformat()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as backend:
        await backend.execute(schema().encode())
        for number in range(SUBMITS):
            task = {"goal": f"order {number}", "start_at": later, "labels": {"outbox": "scene"}}
            await backend.execute("select tenure.submit(%s::jsonb, %s)", (json.dumps(task), f"{dsn[-8:]}-{number}"))

        async def until_sent(number: int) -> list[Any]:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    cursor = await backend.execute("select task_id from tenure.outbox where task_id is not null")
                    if len(sent := [row[0] for row in await cursor.fetchall()]) >= number:
                        return sent
                    await asyncio.sleep(0.01)

        first = await relay(installation, dsn)
        await until_sent(1)
        first.kill()
        await first.wait()
        await backend.execute("update tenure.outbox set next_attempt_at = now() where ended_at is null")
        second = await relay(installation, dsn)
        sent = await until_sent(SUBMITS)
        second.terminate()
        await second.wait()
    listed = [
        task.task_id
        async for task in installation.client.list_tasks(task_filter(labels={"outbox": "scene"}), limit=100)
    ]
    assert sorted(listed) == sorted(sent)
    assert len(listed) == SUBMITS
