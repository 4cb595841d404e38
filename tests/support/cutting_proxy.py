"""A TCP proxy that cuts each connection after some bytes of the answer: at every kind of place, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.support.fix_proxy import CHUNK_BYTES, TcpProxy


class CuttingProxy(TcpProxy):
    """Cuts `len(lengths)` connections, then none. `cuts`: how many it has cut."""

    def __init__(self, host: str, port: int, lengths: Iterator[int]) -> None:
        super().__init__(host, port)
        self._lengths = lengths
        self.cuts = 0

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        if passing is self._requests_pass:
            await super()._pump(source, sink, passing)
            return
        left = next(self._lengths, None)
        while chunk := await source.read(CHUNK_BYTES):
            if left is not None and len(chunk) >= left:
                sink.write(chunk[:left])
                await sink.drain()
                self.cuts += 1
                raise ConnectionResetError("cut")
            left = None if left is None else left - len(chunk)
            sink.write(chunk)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
