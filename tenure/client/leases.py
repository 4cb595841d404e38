"""Acquires leases of named resources and renews them while a block runs.

async with (
    Client(address) as tenure,
    HeldLease(tenure.leases, "tables/orders", holder="importer-1", ttl_seconds=10) as lease,
):
    await write(rows, lease.token)  # the guard compares lease.epoch: see docs/tokens.md
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, Self

import uuid_utils

from tenure.client.reconnect import StreamReconnect
from tenure.domain.errors import Fenced, LeaseHeld, StaleEpoch, TenureError, TryLater
from tenure.domain.fencing import TrustWindow
from tenure.domain.retry import RetryPolicy
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import lease_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.common import duration, seconds

if TYPE_CHECKING:
    from tenure.v1.lease_service_pb2_grpc import LeaseServiceAsyncStub

_log: Final = logging.getLogger(__name__)
CALL_TIMEOUT_SECONDS: Final = 5.0
PATIENCE: Final = RetryPolicy(max_attempts=5, initial_seconds=0.1, factor=2.0, cap_seconds=1.0)
RENEW_RETRY: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=1.0)
LONGEST_WAIT_SECONDS: Final = 1.0
"""The longest pause before the next attempt to acquire a held lease: its holder may release it early."""


class HeldLease:
    """A lease that is acquired at the start of an `async with` block, renewed while it runs, and released at its end.

    When the lease is lost, or could not be renewed within its trust window, the block is cancelled and raises
    StaleEpoch (LEASE_LOST or TRUST_WINDOW_CLOSED). With `cancel_on_loss=False` the block continues and can check
    `lost`. Neither makes a write safe, because a process may pause at any instruction. Only the guard's comparison of
    the epoch does.
    """

    def __init__(
        self,
        stub: LeaseServiceAsyncStub,
        resource: str,
        *,
        holder: str,
        ttl_seconds: float = 10.0,
        wait_seconds: float = 0.0,
        margin_seconds: float | None = None,
        cancel_on_loss: bool = True,
    ) -> None:
        """Prepares a lease. `wait_seconds`: how long to wait for another holder's lease to end.

        margin_seconds: how much earlier than the lease the trust window ends; a fifth of the TTL by default. Raises
        ValueError for a margin that leaves no window.
        """
        if margin_seconds is not None and not 0 <= margin_seconds < ttl_seconds:
            raise ValueError(f"margin_seconds must be 0 or more and less than ttl_seconds, not {margin_seconds:g}")
        self._stub, self._resource, self._holder = stub, resource, holder
        self._ttl_seconds, self._wait_seconds = ttl_seconds, wait_seconds
        self._margin_seconds = ttl_seconds / 5 if margin_seconds is None else margin_seconds
        self._cancel_on_loss = cancel_on_loss
        self._loss: Fenced | None = None
        self._is_cancelling = False
        self.lost = asyncio.Event()

    @property
    def token(self) -> token_pb2.FencingToken:
        """The fencing token for guards. Read it again for each write, because each renewal signs a new token."""
        return self._lease.token

    @property
    def epoch(self) -> int:
        """The epoch in the token. It stays the same while the lease is held."""
        return self._lease.epoch

    @property
    def claim_id(self) -> str:
        """The claim id in the token."""
        return self._lease.claim_id

    @property
    def info(self) -> pb.Lease:
        """The whole lease, with the previous epoch and how the previous lease ended."""
        return self._lease

    @property
    def is_trusted(self) -> bool:
        """Whether the trust window is open: the block may begin something new."""
        return not self.lost.is_set() and self._window.is_open(_now())

    async def __aenter__(self) -> Self:
        await self._acquire()
        self._block_task = asyncio.current_task()
        self._cancelled_before = self._block_task.cancelling() if self._block_task is not None else 0
        self._duties = [asyncio.create_task(self._renew()), asyncio.create_task(self._watch_window())]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        if self._is_cancelling and self._block_task is not None:
            is_own = self._block_task.uncancel() <= self._cancelled_before
            if is_own and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise self._loss or StaleEpoch("the lease was lost") from None
        if self._loss is None:
            await self._release()

    async def _acquire(self) -> None:
        ends_at = _now() + self._wait_seconds
        request = pb.AcquireLeaseRequest(
            resource=self._resource,
            holder=self._holder,
            ttl=duration(self._ttl_seconds),
            request_id=str(uuid_utils.uuid7()),
        )
        while True:
            try:
                sent_at, answer = await self._acquire_once(request)
            except LeaseHeld as error:
                left_seconds = ends_at - _now()
                if left_seconds <= 0:
                    raise
                retry_seconds = error.retry_after_seconds or LONGEST_WAIT_SECONDS
                await asyncio.sleep(min(retry_seconds, left_seconds, LONGEST_WAIT_SECONDS))
                continue
            self._set_lease(sent_at, answer.lease)
            return

    async def _acquire_once(self, request: pb.AcquireLeaseRequest) -> tuple[float, pb.AcquireLeaseResponse]:
        """Sends the request. Retries with the same request_id after a lost answer, so that no lease is lost with it."""

        async def call() -> tuple[float, pb.AcquireLeaseResponse] | LeaseHeld:
            sent_at = _now()
            try:
                return sent_at, await self._stub.AcquireLease(request, timeout=CALL_TIMEOUT_SECONDS)
            except LeaseHeld as error:  # an answer, not a failure
                return error

        answer = await retrying(call, PATIENCE, on=(TryLater,))
        if isinstance(answer, LeaseHeld):
            raise answer
        return answer

    def _set_lease(self, sent_at: float, lease: pb.Lease) -> None:
        self._lease = lease
        self._window = TrustWindow(sent_at, seconds(lease.remaining), self._margin_seconds)

    async def _renew(self) -> None:
        """Renews the lease three times per trust window, and sooner after a failure."""
        failures = 0
        while True:
            interval_seconds = (seconds(self._lease.ttl) - self._margin_seconds) / 3
            await asyncio.sleep(RENEW_RETRY.wait_seconds(failures, random.random()) if failures else interval_seconds)
            sent_at = _now()
            try:
                request = pb.RenewLeaseRequest(token=self._lease.token)
                answer = await self._stub.RenewLease(request, timeout=min(interval_seconds, CALL_TIMEOUT_SECONDS))
            except (TryLater, PeerFailed) as error:
                failures += 1
                _log.info("a lease could not be renewed: trying again", extra={"lease": self._resource, "error": error})
            except TenureError as error:
                self._lose(error if isinstance(error, Fenced) else StaleEpoch(str(error), reason="LEASE_LOST"))
                return
            else:
                failures = 0
                self._set_lease(sent_at, answer.lease)

    async def _watch_window(self) -> None:
        """Ends the lease when the trust window closes. Runs in a task of its own, because a renewal may hang."""
        while True:
            left_seconds = self._window.ends_at - _now()
            if left_seconds <= 0:
                self._lose(StaleEpoch(f"{self._resource} could not be renewed in time", reason="TRUST_WINDOW_CLOSED"))
                return
            await asyncio.sleep(left_seconds)

    def _lose(self, loss: Fenced) -> None:
        if self._loss is not None:
            return
        self._loss = loss
        self.lost.set()
        if self._cancel_on_loss and self._block_task is not None:
            self._is_cancelling = self._block_task.cancel()

    async def _release(self) -> None:
        """Releases the lease, so that other holders need not wait. Without an answer it expires by itself."""
        try:
            request = pb.ReleaseLeaseRequest(token=self._lease.token)
            await self._stub.ReleaseLease(request, timeout=CALL_TIMEOUT_SECONDS)
        except (TenureError, PeerFailed) as error:
            _log.info(
                "a lease could not be released: it expires at the end of its TTL",
                extra={"lease": self._resource, "error": error},
            )


def _now() -> float:
    return asyncio.get_running_loop().time()


async def watch_leases(
    stub: LeaseServiceAsyncStub, prefix: str = "", after_revision: int = 0
) -> AsyncGenerator[pb.LeaseEvent]:
    """Yields the events of leases, for ever. Resumes a broken stream without a gap.

    Raises OutOfRange (CURSOR_EXPIRED): list the leases again.
    """
    reconnect = StreamReconnect()
    while True:
        request = pb.WatchLeasesRequest(prefix=prefix, after_revision=after_revision)
        try:
            async for answer in stub.WatchLeases(request):
                reconnect.succeeded()
                for event in answer.events:
                    yield event
                after_revision = answer.revision
        except TryLater as error:
            await reconnect.wait(error)
