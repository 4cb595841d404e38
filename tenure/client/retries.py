"""A channel to the gateway whose unary calls are retried, each with one request id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import uuid_utils
from google.protobuf.message import Message

from tenure.domain.errors import LimitReached, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import TenureChannel
from tenure.wire.common import seconds

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")

CALL_TIMEOUT_SECONDS: Final = 15.0
PATIENCE: Final = RetryPolicy(max_attempts=5, initial_seconds=0.2, factor=2.0, cap_seconds=5.0)
"""The retries before the gateway has answered once: the address may be wrong."""
ONCE: Final = RetryPolicy(max_attempts=1)
RETURN_PATIENCE: Final = RetryPolicy(max_attempts=12, initial_seconds=0.2, factor=2.0, cap_seconds=2.0)
"""The retries after the gateway has answered: it may be restarting, and the channel reconnects every 2 s."""
_CREATES_WEBHOOK: Final = "tenure.v1.CreateWebhookRequest"
_WITH_SECRETS: Final = frozenset({_CREATES_WEBHOOK, "tenure.v1.RotateWebhookSecretRequest"})
_MADE_ONCE: Final = frozenset({"/tenure.v1.ApiKeyService/CreateApiKey"})
"""The calls of which a repeat has another effect: a second key that no one has."""
_WAIT: Final = "/tenure.v1.TaskService/WaitTask"
_DEFAULT_WAIT_SECONDS: Final = 30.0
"""How long the gateway waits if the request does not say it."""
LONGEST_RETRY_AFTER_SECONDS: Final = 10.0
"""A longer retry time of the server goes to the caller as an error: at a tenant's quota it may be a day."""


class RetryingChannel:
    """A channel for generated stubs. A unary call with a timeout of its own is made once: its caller retries it."""

    def __init__(self, channel: TenureChannel, patience: RetryPolicy = PATIENCE) -> None:
        self.channel, self.patience, self._answered = channel, patience, False
        self.unary_stream, self.stream_unary = channel.unary_stream, channel.stream_unary
        self.stream_stream, self.close = channel.stream_stream, channel.close

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Awaitable[Any]]:
        """Does the same as in gRPC."""
        path = str(args[0])
        method = self.channel.unary_unary(*args, **kwargs)

        async def call(request: Any, *, timeout: float | None = None, **options: Any) -> Any:
            if timeout is None:
                timeout = _timeout_of_one_try(path, request)
            if timeout is None:
                return await self.retried(partial(method, **options), request, CALL_TIMEOUT_SECONDS)
            return await method(request, timeout=timeout, **options)

        return call

    async def retried(
        self, method: Callable[..., Awaitable[Response]], request: Request, timeout_seconds: float
    ) -> Response:
        """Makes a unary call until the gateway answers. `timeout_seconds`: of each attempt."""
        sent = completed(request)
        answer = await retrying(
            lambda: method(sent, timeout=timeout_seconds),
            RETURN_PATIENCE if self._answered else self.patience,
            on=(Unavailable, LimitReached),
            longest_seconds=LONGEST_RETRY_AFTER_SECONDS,
        )
        self._answered = True
        return answer


def _timeout_of_one_try(path: str, request: Any) -> float | None:
    """Returns the timeout of a call that is made once although its caller gives none; None: it is retried."""
    if path == _WAIT:
        waited = seconds(request.timeout) if request.HasField("timeout") else _DEFAULT_WAIT_SECONDS
        return CALL_TIMEOUT_SECONDS + waited
    return CALL_TIMEOUT_SECONDS if path in _MADE_ONCE else None


def completed(request: Request) -> Request:
    """Returns the request with what a repeat must send again: its `request_id`, and the secret that it makes."""
    sent: Any = type(request)()
    sent.CopyFrom(request)
    if "request_id" in request.DESCRIPTOR.fields_by_name:
        sent.request_id = sent.request_id or str(uuid_utils.uuid7())
    if sent.DESCRIPTOR.full_name in _WITH_SECRETS:
        from tenure.wire.webhook_service import new_secret, with_secret  # which only these requests need

        if sent.DESCRIPTOR.full_name == _CREATES_WEBHOOK:
            return with_secret(sent)  # type: ignore[return-value]
        sent.secret = sent.secret or new_secret()
    return sent  # type: ignore[no-any-return]
