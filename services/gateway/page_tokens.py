"""Binds the token of a page to its list: to the type of the request, and to the filter.

The services behind the gateway write the position of a page's last row into its token. Another list would take such a
token for a position of its own, and leave out rows. So a client gets the token with a seal before it: a digest of the
request without what may differ between pages.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from typing import Any, Final

from google.protobuf import descriptor_pool

from services.gateway.client_fields import set_own_fields
from tenure.domain.errors import InvalidRequest
from tenure.validators import validate

_SEAL_CHARACTERS: Final = 8
_OF_ONE_PAGE: Final = ("page_token", "page_size", "fresh")


def seal_of(*parts: bytes) -> str:
    """Returns the beginning of the tokens of a list. `parts`: what makes it another list than others."""
    digest = sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()
    return base64.urlsafe_b64encode(digest).decode()[:_SEAL_CHARACTERS]


def unsealed(token: str, seal: str) -> str:
    """Returns the token of the service. Raises InvalidRequest for a token of another list."""
    if token and not token.startswith(seal):
        message = "is not a token of this list: send next_page_token of a page with the same filter and order"
        raise InvalidRequest(violations=[("page_token", message)], reason="OTHER_LIST")
    return token.removeprefix(seal)


_LONG_REQUEST_BYTES: Final = 256 * 1024
_OWN_FIELDS_BYTES: Final = 64 * 1024
"""More than the fields that the gateway sets: a name comes in metadata, which is shorter."""


def validate_page(request: Any, size_bytes: int) -> None:
    """Sets the gateway's own fields of a client's request, takes the seal off its page token, and validates it.

    Drops fields that this version does not know: a newer service may trust them as fields of the gateway.

    `size_bytes`: of the client's request. Raises InvalidRequest.
    """
    set_own_fields(request)
    if size_bytes > _LONG_REQUEST_BYTES:  # too many items are refused before all of them are walked through
        validate(request, size_bytes + _OWN_FIELDS_BYTES)
    request.DiscardUnknownFields()
    if _has_pages(request.DESCRIPTOR):
        request.page_token = unsealed(request.page_token, _seal(request))
    validate(request, size_bytes + _OWN_FIELDS_BYTES)


class SealedPages:
    """A servicer whose answers have tokens of their lists. Its server validates requests by `validate_page`."""

    def __init__(self, servicer: Any, service: str) -> None:
        self._servicer = servicer
        for method in descriptor_pool.Default().FindServiceByName(service).methods:
            if _has_pages(method.input_type):
                setattr(self, method.name, _sealing(getattr(servicer, method.name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._servicer, name)


def _sealing(handler: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(handler)
    async def answer(request: Any, context: Any) -> Any:
        seal = _seal(request)
        response = await handler(request, context)
        if response.next_page_token:
            response.next_page_token = seal + response.next_page_token
        return response

    return answer


def _has_pages(kind: Any) -> bool:
    return "page_token" in kind.fields_by_name


def _seal(request: Any) -> str:
    listed = type(request)()
    listed.CopyFrom(request)
    for name in _OF_ONE_PAGE:
        if name in request.DESCRIPTOR.fields_by_name:
            listed.ClearField(name)
    return seal_of(request.DESCRIPTOR.full_name.encode(), listed.SerializeToString(deterministic=True))
