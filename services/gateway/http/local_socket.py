"""The Unix socket between the HTTP server and the gateway's own gRPC server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def local_socket() -> AsyncGenerator[Path]:
    """Yields the path of a Unix socket in a folder that only this account may enter."""
    with tempfile.TemporaryDirectory(prefix="tenure-gateway-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "grpc"
