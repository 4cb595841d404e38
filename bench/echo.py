"""`python -m bench.echo`: a gRPC server that returns each message of a stream, without any rule.

Prints its port. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

METHOD: Final = "/bench.Echo/Stream"
HOST: Final = "127.0.0.1"


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002  gRPC's interface
        """Returns the only handler, whatever the method."""
        return grpc.stream_stream_rpc_method_handler(_echo)


async def _echo(messages: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


async def _serve(tell: Callable[[str], None]) -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Echo(),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    tell(str(port))
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_serve(lambda line: print(line, flush=True)))
