"""The application: routes, the checks of every request, and errors as problems."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.http.answers import HealthStatus
from services.gateway.http.api_route import ApiRoute
from services.gateway.http.body import DropsUnreadBody, json_body
from services.gateway.http.call import REQUEST_ID_HEADER, TENANT_HEADER, TENANT_PARAMETER, HttpCall, Stubs
from services.gateway.http.forwarded import Forwarded
from services.gateway.http.json_text import json_bytes
from services.gateway.http.openapi import openapi_document
from services.gateway.http.operations import caller
from services.gateway.http.origins import Origins, is_local_name
from services.gateway.http.problems import HttpRefusal, problem_response
from services.gateway.http.requests import NoQuery
from services.gateway.http.routes import ROUTES
from services.gateway.http.sessions import (
    SESSION_PATH,
    SessionBody,
    begin_session,
    end_session,
    is_cookie_text,
)
from services.gateway.http.settings import HttpSettings
from services.gateway.http.shapes import read_json, read_query
from services.gateway.http.streams import LAST_EVENT_ID
from tenure.domain.errors import InvalidRequest, TenureError, Unauthenticated
from tenure.runtime.rpc.status import PeerFailed
from tenure.sdk.errors import named_arguments
from tenure.sdk.json_shape import PublicValue

_log: Final = logging.getLogger(__name__)
MAX_HEAD_BYTES: Final = 16 * 1024
NO_STORE: Final = {"cache-control": "no-store"}
_CORS_HEADERS: Final = ("authorization", "content-type", REQUEST_ID_HEADER, LAST_EVENT_ID, TENANT_HEADER)
_CORS_METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
Endpoint = Callable[[Request], Awaitable[Response]]


class HttpApp:
    """Makes the application. `stubs`: of the gateway's own server. `stopping`: set while the gateway drains.

    `edge_routes`: of edges, for the table of routes.
    """

    def __init__(
        self,
        stubs: Stubs,
        settings: HttpSettings,
        stopping: asyncio.Event,
        *,
        is_authenticated: bool,
        any_name: bool,
        edge_routes: Iterable[ApiRoute] = (),
    ) -> None:
        self._stubs, self._stopping = stubs, stopping
        self._origins = Origins(settings.cors_origins, any_name=is_authenticated or any_name)
        self._cors_origins, self._proxies = settings.cors_origins, settings.proxies
        self._routes = (*ROUTES, *edge_routes)
        self._document = b""

    def asgi(self, more_routes: Iterable[BaseRoute] = ()) -> ASGIApp:
        """Returns the application (ASGI). `more_routes`: with checks and errors of their own."""
        cors = Middleware(
            CORSMiddleware,
            allow_origins=self._cors_origins,
            allow_methods=_CORS_METHODS,
            allow_headers=_CORS_HEADERS,
            expose_headers=("retry-after", "etag"),
            max_age=600,
        )
        handlers: dict[Any, Any] = {HTTPException: _on_http_exception}
        app = Starlette(
            routes=[*map(self._api_route, self._routes), *self._own_routes(), *more_routes],
            middleware=[
                Middleware(DropsUnreadBody),
                Middleware(Forwarded, trusted=self._proxies),
                Middleware(SafeHeaders),
                *([cors] if self._cors_origins else []),
            ],
            exception_handlers=handlers,
        )
        app.router.redirect_slashes = False
        return app

    def _api_route(self, route: ApiRoute) -> Route:
        return only(
            route.method, Route(route.path, self.endpoint(partial(self._answer, route)), methods=[route.method])
        )

    def _own_routes(self) -> list[Route]:
        return [
            Route("/openapi.json", self.endpoint(self._openapi), methods=["GET"]),
            Route("/healthz", self.endpoint(self._health), methods=["GET"]),
            Route(SESSION_PATH, self.endpoint(self._begin_session), methods=["POST"]),
            Route(SESSION_PATH, self.endpoint(self._end_session), methods=["DELETE"]),
        ]

    def check(self, request: Request) -> None:
        """Raises HttpRefusal for a head that is too large, and for a request that a page of another origin caused."""
        _check_head(request)
        self._origins.check(request)

    def endpoint(self, answer: Endpoint) -> Endpoint:
        """Returns an endpoint with the checks of every request, whose errors are problems."""

        async def checked(request: Request) -> Response:
            try:
                self.check(request)
                return await answer(request)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # the client is gone
            except (TenureError, PeerFailed) as error:
                return problem_response(error)
            except Exception as error:  # noqa: BLE001  a bug, which the log has with its stack
                _log.exception("unexpected error in %s %s", request.method, request.url.path)
                return problem_response(error)

        return checked

    async def _answer(self, route: ApiRoute, request: Request) -> Response:
        call = HttpCall(request, self._stubs)
        parameters = [(name, text) for name, text in request.query_params.multi_items() if name != TENANT_PARAMETER]
        query = read_query(route.query, parameters)
        if route.body is not None:
            await call.known()
        query = await call.find_ids(query)
        body = None if route.body is None else read_json(route.body, await _body_of(route, request))
        try:
            with named_arguments(route.name_of):
                value = await route.handler(call, query, body)
        except InvalidRequest as error:
            error.hint = error.hint or (f"change {error.field}" if error.field else "")
            raise
        except (ValueError, OverflowError) as error:
            raise _number_out_of_range(error) from error
        return value if isinstance(value, Response) else json_response(value, route.status)

    async def _openapi(self, _request: Request) -> Response:
        if not self._document:  # 0.2 s of work, which most processes never need
            document = await asyncio.to_thread(openapi_document, self._routes)
            self._document = json_bytes(document)
        return Response(self._document, media_type="application/json", headers={"cache-control": "no-cache"})

    async def _health(self, _request: Request) -> Response:
        if self._stopping.is_set():
            return json_response(HealthStatus("NOT_SERVING"), HTTPStatus.SERVICE_UNAVAILABLE)
        return json_response(HealthStatus("SERVING"))

    async def _begin_session(self, request: Request) -> Response:
        """Verifies the key by a call, and sets the cookie."""
        body = read_json(SessionBody, await json_body(request))
        if not is_cookie_text(body.api_key):
            raise Unauthenticated("the text is neither an API key nor a token", reason="API_KEY_INVALID")
        call = HttpCall(request, self._stubs, key=body.api_key)
        response = json_response(await caller(call, NoQuery(), None))
        begin_session(request, response, body.api_key)
        return response

    async def _end_session(self, request: Request) -> Response:
        response = Response(status_code=HTTPStatus.NO_CONTENT, headers=NO_STORE)
        end_session(request, response)
        return response


def only(method: str, route: Route) -> Route:
    """Removes the HEAD method that Starlette adds to each GET: a stream of events without its body has no use."""
    route.methods = {method}
    return route


def json_response(value: PublicValue, status: int = HTTPStatus.OK) -> Response:
    """Returns a public value as an answer that no cache keeps."""
    return Response(json_bytes(value.to_json()), status, NO_STORE, "application/json")


def _number_out_of_range(error: ValueError | OverflowError) -> Exception:
    """Returns the error for a number that the message of the contract cannot hold. Anything else is a bug."""
    if "out of range" in str(error).lower() or isinstance(error, OverflowError):
        return InvalidRequest(f"a number is too large: {error}")
    return error


def _check_head(request: Request) -> None:
    """Raises HttpRefusal. h11 bounds a head only while it is incomplete: one that comes at once may be larger."""
    path_bytes = len(request.scope["raw_path"]) + len(request.scope["query_string"])
    if path_bytes + sum(len(name) + len(value) for name, value in request.headers.raw) > MAX_HEAD_BYTES:
        message = f"the path and the headers have more than {MAX_HEAD_BYTES:,} bytes"
        raise HttpRefusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "HEADER_TOO_LARGE", message)


async def _body_of(route: ApiRoute, request: Request) -> Any:
    value = await json_body(request)
    return value if route.prepare is None else route.prepare(value)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answers a request that no route takes."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    reason = {HTTPStatus.NOT_FOUND: "NO_SUCH_ROUTE", HTTPStatus.METHOD_NOT_ALLOWED: "OTHER_METHOD"}.get(
        status, "REFUSED"
    )
    response = problem_response(HttpRefusal(status, reason, f"{request.method} {request.url.path}: {status.phrase}"))
    response.headers.update(error.headers or {})
    return response


class SafeHeaders:
    """Adds the headers that every answer has: browsers guess no types, and send no addresses to others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        is_tls = scope["scheme"] == "https" and not is_local_name(Headers(scope=scope).get("host", ""))
        transport = _TLS_HEADERS if is_tls else ()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_SAFE_HEADERS, *transport]
            await send(message)

        await self._app(scope, receive, with_headers)


_SAFE_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_TLS_HEADERS: Final = ((b"strict-transport-security", b"max-age=31536000"),)
"""Browsers then open this name without clear text only. A developer's machine has other servers under its name."""
