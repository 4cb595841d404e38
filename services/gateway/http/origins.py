"""Decides which web pages may call the gateway.

A browser sends what a page of any site tells it to, with its cookies, and from inside of the network. So a request that
changes something is refused if it comes from a page of another origin that is not in CORS_ORIGINS. Without
authentication, a name that is not this machine's is refused too: any site may let its name resolve to 127.0.0.1.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from starlette.requests import Request

from services.gateway.http.problems import HttpRefusal
from services.gateway.http.sessions import key_of_session

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PORT: Final = r"(?::\d{1,5})?"
_LOCAL_NAME: Final = re.compile(rf"(?:[a-z0-9_-]{{1,63}}\.)*localhost{_PORT}", re.ASCII | re.IGNORECASE)
_ADDRESS: Final = re.compile(rf"(?:\[([0-9a-f:.]+)\]|([0-9.]+)){_PORT}", re.ASCII | re.IGNORECASE)
"""Of the header Host. Parsers of URLs take more, and disagree about it."""
_OWN_SITES: Final = frozenset({"same-origin", "none"})


class Origins:
    """`allowed`: other origins whose pages may call. `any_name`: the host may have any name."""

    def __init__(self, allowed: tuple[str, ...], *, any_name: bool) -> None:
        self._allowed, self._any_name = frozenset(allowed), any_name

    def check(self, request: Request) -> None:
        """Raises HttpRefusal for a request that a page of another origin caused."""
        if not self._any_name and not is_this_machine(request.headers.get("host", "")):
            raise HttpRefusal(
                HTTPStatus.MISDIRECTED_REQUEST,
                "OTHER_HOST",
                "this gateway has no authentication, and answers only under an IP address or localhost",
            )
        if request.method in _SAFE or "authorization" in request.headers:
            return  # a page of another origin needs leave to read an answer, and to send this header
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        if origin in self._allowed and not key_of_session(request):
            return
        is_own = site in _OWN_SITES if site is not None else origin == _own(request)
        if not is_own and (origin is not None or site is not None or key_of_session(request)):
            raise HttpRefusal(
                HTTPStatus.FORBIDDEN, "OTHER_ORIGIN", "a page of another origin may not send this request"
            )


def _own(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}"


def is_this_machine(host: str) -> bool:
    """Whether the host is this machine's: an IP address or localhost, with or without a port."""
    if is_local_name(host):
        return True
    match = _ADDRESS.fullmatch(host)
    try:
        return match is not None and ip_address(match[1] or match[2]) is not None
    except ValueError:
        return False


def is_local_name(host: str) -> bool:
    """Whether the host is a name that only this machine has, with or without a port."""
    return _LOCAL_NAME.fullmatch(host) is not None
