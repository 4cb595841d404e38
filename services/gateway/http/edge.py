"""What an edge adds to the HTTP server: a protocol or pages beside the product's own routes. See edges/."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request
from starlette.routing import BaseRoute

from services.gateway.http.api_route import ApiRoute
from services.gateway.http.call import Stubs
from services.gateway.http.settings import HttpSettings
from services.gateway.peers import Peers


@dataclass(frozen=True, slots=True)
class Door:
    """The door as an edge sees it. `stubs`: of the gateway's own server. `is_authenticated`: callers need a key.

    `peers`: the services behind the gateway, for an edge that authenticates its callers itself.

    `check`: raises HttpRefusal for a head that is too large, and for a request that a page of another origin caused.
    """

    stubs: Stubs
    peers: Peers
    settings: HttpSettings
    check: Callable[[Request], None]
    is_authenticated: bool


@asynccontextmanager
async def no_routes(_door: Door) -> AsyncGenerator[Sequence[BaseRoute]]:
    """Yields no route."""
    yield ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEdge:
    """`api_routes`: in /openapi.json. `opened`: yields routes with checks and errors of their own, and serves them."""

    api_routes: Sequence[ApiRoute] = ()
    opened: Callable[[Door], AbstractAsyncContextManager[Sequence[BaseRoute]]] = no_routes
