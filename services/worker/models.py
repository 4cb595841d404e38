"""The port to the models: makes the call of a model attempt, directly at the provider or by a model runner.

A model runner's calls outlive this worker: see model_runner.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tenure.domain.budget import TokenUsage
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelClient, ModelRequest
from tenure.v1 import token_pb2


@dataclass(frozen=True, slots=True)
class ClaimedAttempt:
    """A model attempt under a claim. `token`: returns the newest token of the claim.

    `reserved_epoch`: the epoch under which the ledger recorded the newest attempt; 0: it has none.
    """

    token: Callable[[], token_pb2.FencingToken]
    step: int
    attempt_number: int
    priority: Priority = Priority.NORMAL
    reserved_epoch: int = 0


@dataclass(frozen=True, slots=True)
class CallEvents:
    """The listeners of a model call. `on_text`: the block and its next piece. `on_usage`: the usage has grown.

    `on_wait`: the call may give no sign for its whole timeout from now on. `on_state`: whether it waits at a model
    runner, and nothing was sent.
    """

    on_text: Callable[[int, str], None]
    on_usage: Callable[[], None]
    on_wait: Callable[[], None]
    on_state: Callable[[bool], None]


class FollowedCall(Protocol):
    """A model call: what is known of it while it runs, and its answer."""

    @property
    def usage(self) -> TokenUsage:
        """The usage that it is billed so far."""

    @property
    def request_id(self) -> str:
        """The provider's id of it."""

    async def answer(self) -> ModelAnswer:
        """Makes the call. Raises ModelCallFailed."""


class Models(Protocol):
    """The port. `outlives_worker`: whether calls go on when this worker is gone."""

    outlives_worker: bool
    timeout_seconds: float

    @property
    def in_reach(self) -> bool:
        """False while this worker cannot reach what makes its calls."""

    def call(self, attempt: ClaimedAttempt, request: ModelRequest, events: CallEvents) -> FollowedCall:
        """Returns the call of an attempt, which its `answer` makes."""

    async def cancel(self, attempt: ClaimedAttempt) -> ModelAnswer | None:
        """Stops a call that outlives its worker. Returns the answer that it had before; None: it was never sent.

        Raises ModelCallFailed with its failure, and TryLater, PeerFailed and Fenced.
        """

    async def count(self, attempt: ClaimedAttempt, request: ModelRequest) -> int | None:
        """Returns the provider's count of the request's input in tokens, or None."""


@dataclass(frozen=True, slots=True)
class DirectCall:
    """A call that this process sends to the provider."""

    client: ModelClient
    request: ModelRequest
    call: ModelCall

    @property
    def usage(self) -> TokenUsage:
        return self.call.usage

    @property
    def request_id(self) -> str:
        return self.call.request_id

    async def answer(self) -> ModelAnswer:
        return await self.client.answer(self.request, self.call)


class DirectModels:
    """The direct way: this process calls the providers, and a call ends with its claim."""

    outlives_worker = False

    def __init__(self, client: ModelClient) -> None:
        self._client = client
        self.timeout_seconds = client.timeout_seconds

    @property
    def in_reach(self) -> bool:
        """True: a provider that is away is a failure of the call, and the task is retried later."""
        return True

    def call(self, _attempt: ClaimedAttempt, request: ModelRequest, events: CallEvents) -> FollowedCall:
        return DirectCall(self._client, request, ModelCall(events.on_text, events.on_usage))

    async def cancel(self, _attempt: ClaimedAttempt) -> ModelAnswer | None:
        raise AssertionError("a call of this process ends with the work that awaits it")

    async def count(self, _attempt: ClaimedAttempt, request: ModelRequest) -> int | None:
        return await self._client.count(request)
