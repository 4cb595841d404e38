"""Serves the files of the console."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.gateway.http.edge import Door, HttpEdge

POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS: Final = {"content-security-policy": POLICY, "cache-control": "no-cache"}
"""A browser asks each time whether a file has changed: a page of one release never runs with modules of another."""


class ConsoleFiles(StaticFiles):
    """The files, with the headers above."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns a file of the folder, or raises HTTPException."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


@asynccontextmanager
async def console_pages(_door: Door) -> AsyncGenerator[Sequence[BaseRoute]]:
    """Yields the routes of the console. They have no call: its pages call the routes of the door."""
    files: Any = ConsoleFiles(directory=Path(__file__).with_name("files"), html=True)
    yield (
        Route("/", _to_console, methods=["GET"]),
        Route("/console", _to_console, methods=["GET"]),
        Mount("/console", files),
    )


CONSOLE: Final = HttpEdge(opened=console_pages)


async def _to_console(_request: Request) -> Response:
    return RedirectResponse("/console/", HTTPStatus.TEMPORARY_REDIRECT)
