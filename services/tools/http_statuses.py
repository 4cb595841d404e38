"""What an HTTP status says of a request that must not be carried out twice: one rule for everything asked over HTTP.

Only what says by RFC 9110 that the request was not carried out is taken for that. A gateway that has passed a request
on answers 5xx when it loses the server, with `Retry-After` or without, and many servers do when they fail half-way.
"""

from __future__ import annotations

from typing import Final

_ASKED_ELSEWHERE: Final = frozenset((307, 308))
"""Redirects that have to be followed with the same request: it was not carried out here. A 303 says that it was."""

_SLOW: Final = frozenset((408, 499))
"""By the letter the request did not arrive as a whole; proxies say so, too, of a server that they gave up on."""

_NOT_SUPPORTED: Final = frozenset((501, 505))


def leaves_open(status: int) -> bool:
    """Whether it is open if the request was, or will be, carried out. `status`: a final one."""
    if 200 <= status < 300 or status in _ASKED_ELSEWHERE or status in _NOT_SUPPORTED:
        return False
    return status in _SLOW or not 400 <= status < 500
