"""Serves one worker's stream: reads renewals, slots and releases, and sends grants and revocations."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final

import grpc

from services.coordinator.claims.dispatch import Dispatch
from services.coordinator.claims.issuing import Issuer
from services.coordinator.claims.lost_claims import ClaimReleases
from services.coordinator.generation import Generation
from services.coordinator.lease_store import LeaseStore, SessionLost
from services.coordinator.sessions.session import AttachedSession, reported_slots
from tenure.domain.errors import InvalidRequest, TenureError, Unavailable
from tenure.domain.states import Reason
from tenure.runtime.observability.logs import log_context
from tenure.runtime.rpc.server import draining
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import token_pb2

_log: Final = logging.getLogger(__name__)
GOAWAY_SECONDS: Final = 3.0
"""The time for a worker to attach elsewhere after Goaway, before its stream is ended."""
_STREAM_AGE_SECONDS: Final = 1500.0
_NO_SPACE_SECONDS: Final = 2.0
"""The pause before the next look whether etcd has space again."""
MAX_TOKENS: Final = 1000
MAX_TOKEN_BYTES: Final = 1024 * 1024
"""The limit of newly signed tokens in one Renewed; the other tokens come with later ones."""


class StreamEnd(Enum):
    """The way in which a stream ended. It decides whether the session goes on."""

    BROKEN = auto()  # without an announcement: the worker may be dead, or attach to another replica
    GOODBYE = auto()  # the worker drained and closed the stream
    ANNOUNCED = auto()  # this replica sent Goaway: the worker attaches elsewhere and keeps its claims
    UNANSWERED = auto()  # the worker left because this replica or etcd did not answer: its lease shows whether it lives
    LOST = auto()  # the session is lost


SESSION_GOES_ON: Final = frozenset({StreamEnd.ANNOUNCED, StreamEnd.UNANSWERED})
"""Ends after which the session goes on until its lease expires."""


class SessionStreamServer:
    """Serves one attached session until its stream ends."""

    def __init__(
        self,
        session: AttachedSession,
        store: LeaseStore,
        issuer: Issuer,
        releases: ClaimReleases,
        dispatch: Dispatch,
        generation: Generation,
        stopping: asyncio.Event,
    ) -> None:
        self._session = session
        self._generation = generation
        self._store = store
        self._issuer = issuer
        self._releases = releases
        self._dispatch = dispatch
        self._stopping = stopping
        self._renew: pb.Renew | None = None
        self._renew_arrived = asyncio.Event()
        self._drained = False
        self._was_silent = False

    @property
    def ending(self) -> StreamEnd:
        """The way in which the stream ended."""
        if self._session.lost:
            return StreamEnd.LOST
        if self._drained:
            return StreamEnd.GOODBYE
        if self._session.sent_away:
            return StreamEnd.ANNOUNCED
        return StreamEnd.UNANSWERED if self._was_silent else StreamEnd.BROKEN

    async def serve(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        """Serves until the worker closes or breaks the stream, or the session ends it. Raises the session's error."""
        session = self._session
        with log_context(worker=session.worker_id, session=session.session_id):
            try:
                await self._serve(requests, context)
            finally:
                # When this replica was silent, the worker is alive and attaches to another replica. A worker that comes
                # back and leaves before its first renewal gave up waiting for a late Welcome.
                silent_seconds = session.silent_seconds(asyncio.get_running_loop().time())
                self._was_silent = session.renewed_at is None or silent_seconds >= session.timing.unanswered_seconds
        if session.error is not None:
            raise session.error

    async def _serve(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        async with TaskGroup() as group:
            coroutines = [self._read(requests), self._write(context), self._renewals(), self._send_away()]
            running = [group.create_task(part) for part in coroutines]
            await self._session.ended.wait()
            for task in running:
                task.cancel()

    async def _read(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        try:
            async for request in requests:
                self._take_request(request)
            self._drained = self._session.draining
            self._session.end(None)
        except TenureError as error:
            self._session.end(error)
        except (grpc.aio.BaseError, grpc.RpcError) as error:
            _log.debug("a stream broke", extra={"error": error})
            self._session.end(None)

    def _take_request(self, request: pb.SessionRequest) -> None:
        session = self._session
        match request.WhichOneof("message"):
            case "renew":
                self._take_renewal(request.renew)
            case "calls_heard":
                session.on_model_calls(request.calls_heard.holdings, asyncio.get_running_loop().time())
            case "slots":
                read = request.slots.grants_read if request.slots.HasField("grants_read") else None
                session.report_slots(reported_slots(request.slots), read)
                self._dispatch.on_slots(session)
            case "release":
                self._releases.release(session, request.release)
            case "drain":
                session.draining = True
            case _:
                raise InvalidRequest(violations=[("hello", "must be the first message, and only the first")])

    def _take_renewal(self, renew: pb.Renew) -> None:
        session = self._session
        now = asyncio.get_running_loop().time()
        for unknown in session.observe(renew.holdings, now)[: session.room]:  # the next renewal names the others again
            revoke = pb.Revoke(task_id=unknown.task_id, claim_id=unknown.claim_id, reason=Reason.CLAIM_LOST)
            session.send(pb.SessionResponse(revoke=revoke))
        session.report_slots(reported_slots(renew), renew.grants_read if renew.HasField("grants_read") else None)
        session.renewal_came(now)
        # Only the newest renewal is sent to etcd: it contains all older ones, and nothing piles up while etcd is slow.
        self._renew = renew
        self._renew_arrived.set()

    async def _renewals(self) -> None:
        """Renews the lease in etcd.

        No other code renews a worker's lease, and only a renewal of the worker causes it.
        """
        session, clock = self._session, asyncio.get_running_loop().time
        while True:
            await self._renew_arrived.wait()
            self._renew_arrived.clear()
            assert self._renew is not None
            number, sent_at = self._renew.renew_number, clock()
            try:
                await self._keep_alive(sent_at)
            except SessionLost:
                session.lose("the session has ended, or is attached to another coordinator")
                return
            except Unavailable as error:
                _log.warning("a renewal was not answered by etcd", extra={"error": error})
                continue
            session.renewed(sent_at)
            session.send(pb.SessionResponse(renewed=pb.Renewed(renew_number=number, tokens=self._rotated_tokens())))
            self._dispatch.on_slots(session)

    async def _keep_alive(self, now: float) -> None:
        """Renews the lease. Raises SessionLost, also when the worker is attached elsewhere by now.

        A replica that slept finds old renewals in its buffers: after a silence it first asks etcd where the session is
        attached.
        """
        session = self._session
        if session.silent_seconds(now) > session.timing.unheard_seconds:
            stored = await self._store.sessions.find(session.session_id)
            if stored is None or stored.mod_revision != session.held.mod_revision:
                raise SessionLost("the session has ended, or is attached to another coordinator")
        await self._store.sessions.keep_alive(session.held, timeout_seconds=session.timing.renew_interval_seconds)

    def _rotated_tokens(self) -> list[token_pb2.FencingToken]:
        """Signs tokens again for claims whose tokens were signed with an older key.

        Each renewal brings a part of them: all at once would be too large a message and would delay other sessions.
        """
        key_id, left_bytes = self._issuer.key_id, MAX_TOKEN_BYTES
        tokens: list[token_pb2.FencingToken] = []
        for claim in self._session.claims.values():
            if claim.key_id == key_id:
                continue
            if left_bytes <= 0 or len(tokens) == MAX_TOKENS:
                break
            tokens.append(self._issuer.issue(claim.held))
            left_bytes -= tokens[-1].ByteSize()
            claim.key_id = key_id
        return tokens

    async def _write(self, context: Any) -> None:
        try:
            while True:
                await context.write(await self._session.next_response())
        except (grpc.aio.BaseError, grpc.RpcError) as error:
            _log.debug("a stream broke", extra={"error": error})
            self._session.end(None)

    async def _send_away(self) -> None:
        """Sends Goaway when this replica drains or the stream is old.

        The worker then attaches elsewhere and keeps its claims. While etcd is out of space no stream is too old; after
        that the workers that attached without a put attach again.
        """
        clock = asyncio.get_running_loop().time
        old_at = clock() + _STREAM_AGE_SECONDS * random.uniform(0.8, 1.0)
        while not self._stopping.is_set():
            waits = self._session.unwritten or self._generation.is_out_of_space
            with suppress(TimeoutError):
                async with asyncio.timeout(_NO_SPACE_SECONDS if waits else old_at - clock()):
                    await self._stopping.wait()
            may_write = self._session.unwritten and self._generation.is_settled
            if may_write or (clock() >= old_at and not self._generation.is_out_of_space):
                _log.info("a session stream is old or not recorded; its worker is asked to attach again")
                break
        self._session.sent_away = True  # from here on the worker would not read a grant
        self._session.send(pb.SessionResponse(goaway=pb.Goaway()))
        await asyncio.sleep(GOAWAY_SECONDS)
        self._session.end(draining())
