"""Errors as `application/problem+json` (RFC 9457), with the codes of docs/client.md."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, Final

import grpc
from starlette.responses import Response

from services.gateway.http.answers import FieldProblem, Problem
from services.gateway.http.json_text import json_bytes
from tenure.domain.errors import InvalidRequest, TenureError, TryLater
from tenure.runtime.rpc.status import PeerFailed, code_of
from tenure.sdk.errors import ServerFailed

MEDIA_TYPE: Final = "application/problem+json"

STATUSES: Final[dict[grpc.StatusCode, HTTPStatus]] = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.GONE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
}
"""The HTTP status of each gRPC status. All others: 500."""


class HttpRefusal(TenureError):  # noqa: N818  named after the answer
    """A request that the door itself refuses, with an HTTP status of its own."""

    default_reason = "REFUSED"

    def __init__(self, status: HTTPStatus, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
        self.status = status


def status_of(error: Exception) -> HTTPStatus:
    """Returns the HTTP status of an error."""
    match error:
        case HttpRefusal():
            return error.status
        case ServerFailed():
            return HTTPStatus.INTERNAL_SERVER_ERROR
        case PeerFailed():
            return STATUSES.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
        case TenureError():
            return STATUSES.get(code_of(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def problem_of(error: Exception) -> dict[str, Any]:
    """Returns the problem document. Of a bug, it says nothing but that."""
    status = status_of(error)
    beginning = ("about:blank", status.phrase, int(status))
    if not isinstance(error, TenureError) or isinstance(error, ServerFailed):
        detail = "internal error; the log of the gateway has the details"
        return Problem(*beginning, detail, "INTERNAL", {}).to_json()
    violations = error.violations if isinstance(error, InvalidRequest) else ()
    return Problem(
        *beginning,
        error.message,
        error.reason,
        error.metadata,
        error.hint,
        tuple(FieldProblem(one.field, one.description) for one in violations),
        error.retry_after_seconds if isinstance(error, TryLater) else None,
    ).to_json()


def problem_response(error: Exception) -> Response:
    """Returns the answer to a request that failed."""
    status, headers = status_of(error), {"cache-control": "no-store"}
    if status is HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, TryLater) and error.retry_after_seconds is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds)))
    return Response(json_bytes(problem_of(error)), status, headers, MEDIA_TYPE)
