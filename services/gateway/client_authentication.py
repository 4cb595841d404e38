"""Authenticates the clients of a gateway by the bearer token of each call: an API key, or a JSON Web Token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tenure.domain.access import API_KEY_PREFIX, Principal
from tenure.domain.errors import Unauthenticated

if TYPE_CHECKING:
    from services.gateway.api_keys import ApiKeys
    from services.gateway.json_web_tokens import JsonWebTokens
    from tenure.runtime.security.access_control import Metadata

AUTHORIZATION: Final = "authorization"
_BEARER: Final = "Bearer "


class ClientAuthentication:
    """Authenticates calls. `api_keys`, `tokens`: None where the gateway does not accept them."""

    def __init__(self, api_keys: ApiKeys | None, tokens: JsonWebTokens | None) -> None:
        self._api_keys, self._tokens = api_keys, tokens

    async def authenticate(self, context: Any, metadata: Metadata) -> Principal:
        """Returns the client of the call. Raises Unauthenticated; Unavailable and LimitReached while that cannot be
        known.
        """
        presented = self._bearer(metadata)
        if self._tokens is not None and (self._api_keys is None or not presented.startswith(API_KEY_PREFIX)):
            return await self._tokens.authenticate(presented)
        assert self._api_keys is not None, "a gateway with clients accepts keys, tokens, or both"
        return await self._api_keys.authenticate(presented, context.peer().rpartition(":")[0])

    def _bearer(self, metadata: Metadata) -> str:
        """Returns the text after "Bearer ". Raises Unauthenticated for a call without authorization, or with two."""
        given = [value for key, value in metadata or () if key == AUTHORIZATION]
        if len(given) != 1 or not isinstance(given[0], str) or not given[0].startswith(_BEARER):
            accepted = ["an API key"] * (self._api_keys is not None)
            accepted += ["a token of the identity provider"] * (self._tokens is not None)
            raise Unauthenticated(
                f"this gateway needs {' or '.join(accepted)}: send it once, in the metadata of gRPC or in a header of "
                "HTTP, as authorization: Bearer KEY",
                reason="NO_API_KEY",
            )
        return given[0].removeprefix(_BEARER)
