"""Sends the requests of a control function's client to the model runner, whose calls outlive this worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from services.worker.model_runner import RunnerModels, VendorRunnerCall
from services.worker.models import CallEvents, ClaimedAttempt
from tenure.control.model_calls import VendorCallFailed, VendorRequest
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelAnswer, ModelCallFailed
from tenure.v1 import model_service_pb2 as pb
from tenure.wire.common import duration
from tenure.wire.model_service import MAX_BODY_BYTES

SECOND_REQUEST: Final = (
    "a model call made two different requests: make each request a model call of its own, and let the client not retry "
    "or change a request by itself"
)
TOO_LARGE: Final = (
    f"the request has more than {MAX_BODY_BYTES} bytes, the most that a model runner passes on: send fewer or smaller "
    "images and files, or refer to files that the provider stores"
)
NO_ENDPOINT_REMEDY: Final = (
    "or set TENURE_WORKER_FUNCTIONS_USE_RUNNER=false for a worker that has the key, and whose functions and agents in "
    "Python call the provider themselves"
)
END_SECONDS: Final = 10.0
"""How long an answer waits for the runner's count of its usage. Without it the client's count is billed."""
MAX_OUTPUT_TOKENS: Final = 64_000
"""The limit of the request's field. The runner estimates by it how much of a rate limit the call takes."""


class VendorCalls:
    """Sends the request of one attempt.

    `failed`: why the runner gave no whole response. `ended`: how it says that the call ended; None: it goes on, or that
    is not known here. `leaves`: why the task must leave this worker, where the next owner joins the call.
    """

    def __init__(
        self,
        models: RunnerModels,
        attempt: ClaimedAttempt,
        events: CallEvents,
        *,
        max_output_tokens: int,
        timeout_seconds: float,
    ) -> None:
        self._models, self._attempt, self._events = models, attempt, events
        self._max_output_tokens, self._timeout_seconds = max_output_tokens, timeout_seconds
        self._following: set[asyncio.Task[None]] = set()
        self._sent: VendorRequest | None = None
        self.failed: ModelCallFailed | None = None
        self.ended: ModelAnswer | ModelCallFailed | None = None
        self.leaves: Exception | None = None

    async def send(self, request: VendorRequest) -> RunnerResponse:
        """Sends a request, or joins it, and returns when its response begins. Raises VendorCallFailed.

        An attempt is one request: the ledger has no bill for a second one.
        """
        if self._sent not in {None, request}:
            raise VendorCallFailed(SECOND_REQUEST, status_code=0, retryable=False, retry_after_seconds=None)
        if len(request.body) > MAX_BODY_BYTES:
            raise VendorCallFailed(TOO_LARGE, status_code=413, retryable=False, retry_after_seconds=None)
        self._sent = request
        sent = {
            "vendor_request": pb.VendorRequest(path=request.path, beta=request.beta, body=request.body),
            "max_output_tokens": min(self._max_output_tokens, MAX_OUTPUT_TOKENS),
            "timeout": duration(self._timeout_seconds),
        }
        response = RunnerResponse(self._models.pass_on(self._attempt, sent, self._events))
        following = asyncio.create_task(self._follow(response), name="a vendor's response")
        self._following.add(following)
        following.add_done_callback(self._following.discard)
        await response.begun()
        return response

    async def answered(self) -> ModelAnswer | None:
        """Waits for the end of a response that the client has read. None: the runner did not say that it is whole.

        Many clients read to the last event, and the runner sends the end once it is recorded.
        """
        if self._following:
            await asyncio.wait(self._following, timeout=END_SECONDS)
        return self.ended if isinstance(self.ended, ModelAnswer) else None

    async def _follow(self, response: RunnerResponse) -> None:
        """Reads a response to its end, however fast the client reads it."""
        try:
            self.ended = await response.call.answer()
        except ModelCallFailed as failed:
            if failed.error_class is FailureClass.NOT_FOUND and not failed.status_code:
                failed.append(NO_ENDPOINT_REMEDY)
            self.failed = failed
            self.ended = None if failed.error_class is FailureClass.INTERRUPTED else failed
            response.fail(
                VendorCallFailed(
                    failed.message,
                    status_code=failed.status_code,
                    retryable=failed.retryable,
                    retry_after_seconds=failed.retry_after_seconds,
                )
            )
        except Exception as error:  # noqa: BLE001  the loop raises it, and it must not be taken for the end of the call
            self.leaves = error
            response.fail(VendorCallFailed(str(error), status_code=0, retryable=True, retry_after_seconds=None))
        response.end()

    def close(self) -> None:
        """Stops to read. The call goes on."""
        for following in self._following:
            following.cancel()


class RunnerResponse:
    """Implements tenure.control.VendorResponse for a call at the runner."""

    def __init__(self, call: VendorRunnerCall) -> None:
        self.call = call
        call.on_news = self._tell
        self._news = asyncio.Event()
        self._is_over = False
        self._failed: VendorCallFailed | None = None

    @property
    def content_type(self) -> str:
        return self.call.content_type

    @property
    def request_id(self) -> str:
        return self.call.request_id

    async def begun(self) -> None:
        """Waits for the beginning. Raises VendorCallFailed."""
        while not (self.call.content_type or self._is_over):
            await self._wait()
        if self._failed is not None and not self.call.content_type:
            raise self._failed

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it arrives. Raises VendorCallFailed."""
        offset = 0
        while True:
            is_over, piece = self._is_over, bytes(self.call.body[offset:])
            if piece:
                offset += len(piece)
                yield piece
            elif is_over:
                break
            else:
                await self._wait()
        if self._failed is not None:
            raise self._failed

    def fail(self, failed: VendorCallFailed) -> None:
        """Takes why the response is not whole."""
        self._failed = failed

    def end(self) -> None:
        """Takes that nothing follows."""
        self._is_over = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()
