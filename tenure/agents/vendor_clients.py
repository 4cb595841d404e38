"""Lets the clients of the vendors' libraries make the model calls of a task by the model runner.

`by_runner(client)` prepares a client once. From then on, a request that it makes within a model call of a task goes to
the model runner as it is, and the client reads the response of the provider. If it goes to the provider, a stream that
is cut off is an error. All other requests go as before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final

import httpx2

from tenure.agents.whole_streams import check_end
from tenure.control.model_calls import SendVendorRequest, VendorCallFailed, VendorRequest, VendorResponse
from tenure.domain.models import vendor_of_path

_CLIENTS: Final = frozenset({"anthropic.AsyncAnthropic", "openai.AsyncOpenAI"})
"""The clients whose requests the model runner understands."""
_PACKAGES: Final = frozenset({"anthropic", "openai"})
_KEYS: Final = {"ANTHROPIC_API_KEY": "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY": ""}
"""The variables of the keys, each with the one of a token in its place."""
_BASES: Final = "_tenure_base_urls"
"""The attribute of a prepared HTTP client with the base URLs of the clients that use it."""
_SEND: ContextVar[SendVendorRequest | None] = ContextVar("tenure.agents.send", default=None)
_IS_MODEL_CALL: ContextVar[bool] = ContextVar("tenure.agents.is_model_call", default=False)


@contextmanager
def sending(send: SendVendorRequest | None) -> Iterator[None]:
    """Sends the requests of prepared clients in this code, a model call, by `send`. None: they go to the provider."""
    sent, called = _SEND.set(send), _IS_MODEL_CALL.set(True)
    try:
        yield
    finally:
        _SEND.reset(sent)
        _IS_MODEL_CALL.reset(called)


def by_runner(client: Any) -> bool:
    """Prepares a client of `anthropic` or `openai`. Repeatable.

    Returns whether the runner takes its requests: those of an `AsyncAnthropic` or `AsyncOpenAI` without a base URL of
    its own. Any other client goes on calling its server directly, with its own key.
    """
    kind: Any = type(client)
    http = getattr(client, "_client", None)
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if packages.isdisjoint(_PACKAGES) or not isinstance(http, httpx2.AsyncClient):
        return False
    if _BASES not in vars(http):
        vars(http)[_BASES] = set()
        vars(http)["send"] = _send_of(http)
    base_url = str(client.base_url).rstrip("/")
    is_known = f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in _CLIENTS
    if not is_known or base_url != usual_address(kind):
        return False
    vars(http)[_BASES].add(base_url)
    return True


@cache
def usual_address(kind: Any) -> str:
    """Returns the base URL of a client that is given none: the vendor's, or that of the environment."""
    return str(kind(api_key="none").base_url).rstrip("/")


def name_missing_keys(environment: MutableMapping[str, str]) -> None:
    """Sets the variables of keys that are missing or empty: the libraries refuse to make a client without one.

    The runner has the keys. A request that goes another way gets the provider's refusal, which quotes this text. As
    soon as the SDK of OpenAI has a key, it would send traces of the agents to OpenAI. Anthropic's library sends a key
    beside its token, so a token needs none.
    """
    if not environment.get("OPENAI_API_KEY"):
        environment.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    for name, other in _KEYS.items():
        if not (environment.get(name) or environment.get(other)):
            environment[name] = f"{name}-is-at-the-model-runner"


def _send_of(http: httpx2.AsyncClient) -> Any:
    plain, bases = http.send, vars(http)[_BASES]

    async def send(request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        to_runner, url = _SEND.get(), str(request.url)
        path = next((url.removeprefix(base) for base in bases if url.startswith(base)), "")
        if to_runner is None or request.method != "POST" or vendor_of_path(path) is None:
            response = await plain(request, stream=stream, **options)
            if stream and _IS_MODEL_CALL.get():
                check_end(response)
            return response
        beta = request.headers.get("anthropic-beta", "")
        response = await _answered(to_runner, VendorRequest(path, beta, await request.aread()), request)
        if not stream:
            await response.aread()
        return response

    return send


async def _answered(send: SendVendorRequest, sent: VendorRequest, request: httpx2.Request) -> httpx2.Response:
    """Returns the response, also for a refusal. Raises the error of a connection for a call without a response."""
    try:
        response = await send(sent)
    except VendorCallFailed as failed:
        status = failed.status_code or (0 if failed.retryable else 400)
        if not status:
            raise httpx2.ConnectError(str(failed), request=request) from failed
        wait = failed.retry_after_seconds
        headers = {} if wait is None else {"retry-after": f"{wait:g}"}
        body = {"type": "error", "error": {"type": "api_error", "message": str(failed)}}
        return httpx2.Response(status, headers=headers, json=body, request=request)
    ids = {"request-id": response.request_id, "x-request-id": response.request_id} if response.request_id else {}
    headers = {"content-type": response.content_type, **ids}
    return httpx2.Response(200, headers=headers, stream=_Body(response), request=request)


class _Body(httpx2.AsyncByteStream):
    """The body as it arrives."""

    def __init__(self, response: VendorResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields the pieces. Raises httpx2.ReadError."""
        try:
            async for piece in self._response.pieces():
                yield piece
        except VendorCallFailed as failed:
            raise httpx2.ReadError(str(failed)) from failed
