"""A request that takes long ends when its client leaves: the gateway's watch of the task ends with it."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import Any

import pytest

from tenure.runtime.observability import metrics
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import Serve
from tests.support.patience import PATIENCE_SECONDS

LOOPBACK = "127.0.0.1:0"


async def watchers(number: float) -> None:
    """Waits until the ledger, which is in this process, has so many open watches."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while metrics.read("tenure_watchers") != number:
            await asyncio.sleep(0.01)


async def asked(url: str, head: str, body: bytes = b"") -> Any:
    """Sends a request over a connection of its own. Returns the connection's writer."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    _reader, writer = await asyncio.open_connection(host, int(port))
    lines = [
        f"{head} HTTP/1.1",
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    return writer


@pytest.mark.parametrize("protocol", ["v1", pytest.param("a2a", marks=pytest.mark.nightly)])
async def test_a_client_that_leaves_ends_its_watch(protocol: str, checkpoint: MakeCheckpoint, gateway: Serve) -> None:
    replica = await checkpoint()
    task = await replica.create()
    stub, before = await gateway(replica.address, http=LOOPBACK), metrics.read("tenure_watchers")
    if protocol == "v1":
        request = (f"GET /v1/tasks/{task.task_id}/wait?timeout_seconds=600", b"")
    else:
        said = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "No worker takes this."}]}}
        request = ("POST /a2a/message:send", json.dumps(said).encode())
    leaving, staying = await asked(stub.http, *request), await asked(stub.http, *request)
    with closing(leaving), closing(staying):
        await watchers(before + 2)
        leaving.transport.abort()
        await watchers(before + 1)  # the one that stays still has its own
        staying.close()  # an orderly end is an end, too
        await watchers(before)
