"""The session of a browser: the API key in a cookie that no script can read.

The gateway stores nothing, so the cookie has the key itself. A page of another site cannot use it: the cookie is
SameSite=Strict, and what changes something must also come from a page of this origin (origins.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.http.shapes import given
from tenure.domain.access import read_api_key

SESSION_PATH: Final = "/console/session"
SECONDS: Final = 7 * 24 * 3600
_PLAIN: Final = "tenure_session"
_SECURE: Final = f"__Host-{_PLAIN}"
"""On TLS: no other host and no clear text can set a cookie with this beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBody:
    """Begins the session of a browser."""

    api_key: str = given("an API key, or a token of the identity provider")


def _name(request: Request) -> str:
    return _SECURE if request.url.scheme == "https" else _PLAIN


def key_of_session(request: Request) -> str:
    """Returns the key in the cookie of a request; "" for none."""
    return request.cookies.get(_name(request), "")


def begin_session(request: Request, response: Response, key: str) -> None:
    """Sets the cookie. `key`: verified."""
    response.set_cookie(
        _name(request),
        key,
        max_age=SECONDS,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def end_session(request: Request, response: Response) -> None:
    """Clears the cookie."""
    response.delete_cookie(
        _name(request), path="/", secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )


def is_cookie_text(key: str) -> bool:
    """Returns whether a key can be in a cookie: an API key, or a token in the alphabet of JSON Web Tokens."""
    return read_api_key(key) is not None or (
        0 < len(key) <= 3500 and key.isascii() and all(one.isalnum() or one in "._-" for one in key)
    )
