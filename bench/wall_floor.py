"""The wall floor of a step: the least that three messages to another process and three durable transactions take."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import grpc

from bench.data_path import DataPath
from bench.echo import HOST, METHOD
from tenure.runtime.postgres import BoundedConnection
from tenure.runtime.postgres import connection as pool_connection

ROUND_TRIPS: Final = 3
MESSAGE: Final = b"." * 2400
_TABLE: Final = "create table if not exists public.bench_floor (id int primary key, n int not null)"
_ROW: Final = "insert into public.bench_floor values (1, 0) on conflict do nothing"
_UPDATE: Final = "update public.bench_floor set n = n + 1 where id = 1"


@dataclass(frozen=True, slots=True)
class WallFloor:
    """A stream to a server that only returns messages, and a connection to the Postgres of a data path."""

    stream: Any
    connection: BoundedConnection

    async def step(self) -> float:
        """Returns the seconds of three stream round trips and three transactions with one update each."""
        began = perf_counter()
        for _ in range(ROUND_TRIPS):
            await self.stream.write(MESSAGE)
            assert await self.stream.read() == MESSAGE, "the server returned another message"
            async with self.connection.transaction():
                await self.connection.execute(_UPDATE)
        return perf_counter() - began


@asynccontextmanager
async def wall_floor(path: DataPath) -> AsyncIterator[WallFloor]:
    """Yields a floor beside a running data path."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.echo", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel, pool_connection(path.pool) as connection:
            await connection.execute(_TABLE)
            await connection.execute(_ROW)
            stream: Any = channel.stream_stream(METHOD)()
            yield WallFloor(stream, connection)
            await stream.done_writing()
    finally:
        process.stdin.close()
        await process.wait()
