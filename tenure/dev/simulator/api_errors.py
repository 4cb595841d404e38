"""The provider's refusals: status, type and words, in the shape of its API."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from tenure.domain.simulation import SIMULATED_REQUEST_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
DEFAULT_WORDS = {
    400: "The request is invalid (fault)",
    401: "invalid x-api-key",
    402: "Your credit balance is too low to access the API",
    403: "Your API key does not have permission to use the specified resource",
    404: "The requested resource could not be found",
    413: "Request exceeds the maximum size",
    429: "This request would exceed your organization's rate limit",
    500: "Internal server error",
    504: "Request timed out",
    529: "Overloaded",
}


class ApiError(Exception):
    """A request is answered with an error: its HTTP status, the provider's words, headers beside them."""

    def __init__(self, status: int, message: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.message = message or DEFAULT_WORDS.get(status, "Request failed")
        self.headers = dict(headers or {})
        super().__init__(self.message)


def error_value(status: int, message: str, request_id: str) -> dict[str, object]:
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def error_body(status: int, message: str) -> bytes:
    """For requests refused before they are read."""
    return json.dumps(error_value(status, message, new_request_id())).encode()


def new_request_id() -> str:
    return f"{SIMULATED_REQUEST_PREFIX}{secrets.token_hex(12)}"
