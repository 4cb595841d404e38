"""The routes of answer links. See edges/answer_links/pages.py for their pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from edges.answer_links.pages import HEADERS, MAX_FORM_BYTES, AnswerPage, AnswerPages
from services.gateway.http.body import raw_body
from services.gateway.http.edge import Door, HttpEdge
from services.gateway.http.problems import HttpRefusal
from tenure.domain.approvals import LINK_PATH
from tenure.domain.waiting_calls import MAX_WAITING_CALLS

MAX_FIELDS: Final = 10 + MAX_WAITING_CALLS
_FORM: Final = "application/x-www-form-urlencoded"


def answer_routes(pages: AnswerPages) -> list[Route]:
    """Returns the routes. No session and no origin counts here: the token in the path is all that a request needs."""

    async def show(request: Request) -> Response:
        preselected = request.query_params.get("answer", "")
        return _response(await pages.show(request.path_params["token"], _address(request), preselected))

    async def answer(request: Request) -> Response:
        try:
            form = await _form(request)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # the client is gone
        except HttpRefusal as error:
            return Response(error.message, error.status, dict(HEADERS) | {"content-type": "text/plain"})
        return _response(await pages.answer(request.path_params["token"], _address(request), form))

    path = LINK_PATH + "{token}"
    return [Route(path, show, methods=["GET"]), Route(path, answer, methods=["POST"])]


@asynccontextmanager
async def answer_pages(door: Door) -> AsyncGenerator[Sequence[BaseRoute]]:
    """Yields the routes over the services behind the gateway."""
    yield answer_routes(AnswerPages(door.peers))


ANSWER_LINKS: Final = HttpEdge(opened=answer_pages)


def _response(page: AnswerPage) -> Response:
    return Response(page.body, page.status, page.headers)


async def _form(request: Request) -> dict[str, str]:
    """Returns the fields of a form. Raises HttpRefusal for a body that no page of ours sends."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HttpRefusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "NO_FORM", "send the form of the page")
    body = await raw_body(request, MAX_FORM_BYTES)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS))
    except ValueError:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, "BAD_FORM", "the form cannot be read") from None


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"
