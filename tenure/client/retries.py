"""A channel to the gateway whose unary calls are retried, each with one request id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uuid_utils
from google.protobuf.message import Message

from tenure.domain.errors import LimitReached, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying

if TYPE_CHECKING:
    from tenure.runtime.rpc.client import TenureChannel

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")

CALL_TIMEOUT_SECONDS: Final = 15.0
PATIENCE: Final = RetryPolicy(max_attempts=5, initial_seconds=0.2, factor=2.0, cap_seconds=5.0)
"""The retries before the gateway has answered once: the address may be wrong."""
RETURN_PATIENCE: Final = RetryPolicy(max_attempts=12, initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
"""The retries after the gateway has answered: it may be restarting, and the channel reconnects every 2 s."""
LONGEST_RETRY_AFTER_SECONDS: Final = 10.0
"""A longer retry time of the server goes to the caller as an error: at a tenant's quota it may be a day."""


class RetryingChannel:
    """A channel for generated stubs. A unary call with a timeout of its own is made once: its caller retries it."""

    def __init__(self, channel: TenureChannel, patience: RetryPolicy = PATIENCE) -> None:
        self.channel, self._patience, self._answered = channel, patience, False
        self.unary_stream, self.stream_unary = channel.unary_stream, channel.stream_unary
        self.stream_stream, self.close = channel.stream_stream, channel.close

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Awaitable[Any]]:
        """Does the same as in gRPC."""
        method = self.channel.unary_unary(*args, **kwargs)

        async def call(request: Any, *, timeout: float | None = None, **options: Any) -> Any:
            if timeout is None:
                return await self.retried(partial(method, **options), request, CALL_TIMEOUT_SECONDS)
            return await method(request, timeout=timeout, **options)

        return call

    async def retried(
        self, method: Callable[..., Awaitable[Response]], request: Request, timeout_seconds: float
    ) -> Response:
        """Makes a unary call until the gateway answers. `timeout_seconds`: of each attempt."""
        sent = with_request_id(request)
        answer = await retrying(
            lambda: method(sent, timeout=timeout_seconds),
            RETURN_PATIENCE if self._answered else self._patience,
            on=(Unavailable, LimitReached),
            longest_seconds=LONGEST_RETRY_AFTER_SECONDS,
        )
        self._answered = True
        return answer


def with_request_id(request: Request) -> Request:
    """Returns the request with a `request_id`, if its type has one."""
    if "request_id" not in request.DESCRIPTOR.fields_by_name:
        return request
    sent: Any = type(request)()
    sent.CopyFrom(request)
    sent.request_id = sent.request_id or str(uuid_utils.uuid7())
    return sent  # type: ignore[no-any-return]
