"""The beginning of a session: a new one, or one that comes back from another stream, here or at another replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from time import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from services.coordinator.lease_store import GenerationMoved, HeldSession, SessionLost, SessionRecord
from services.coordinator.session import Session, Timing
from tenure.domain.errors import Unavailable
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.times import duration

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.lease_store import HeldClaim, LeaseStore
    from services.coordinator.sessions import Sessions

_log: Final = logging.getLogger(__name__)
_SETTLING_SECONDS: Final = 1.0
_REATTACH_TRIES: Final = 3


class Attaching:
    """Answers Hello."""

    def __init__(
        self, coordinator_id: str, store: LeaseStore, generation: Generation, sessions: Sessions, timing: Timing
    ) -> None:
        self._coordinator_id = coordinator_id
        self._store = store
        self._generation = generation
        self._sessions = sessions
        self._timing = timing

    async def attach(self, hello: pb.Hello) -> Session:
        """The session, Welcome already in its outbox. Raises Unavailable: attach elsewhere."""
        clock = asyncio.get_running_loop().time
        await self._generation.settled(_SETTLING_SECONDS)
        began = clock()
        held, former = await self._come_back(hello), True
        if held is None:
            held, former = await self._begin(hello), False
        # Of a lease that is older than this stream nobody here knows how long it still lives: its renewal will tell.
        session = Session(held, hello, self._timing, attached_at=began, renewed_at=None if former else began)
        kept = await self._kept(held, hello) if former else {}
        for held_claim in kept.values():
            session.hold(held_claim, clock(), named=True)
        session.hear(hello.holdings, clock())
        session.send(self._welcome(session, (each.claim_id for each in hello.holdings)))
        mark = await self._store.drains.find(held.session_id) if former else None
        if mark is not None:
            session.ask_drain(mark.message)
        self._sessions.attach(session)
        _log.info(
            "attached a worker",
            extra={"worker": session.worker_id, "session": session.session_id, "former": former, "claims": len(kept)},
        )
        return session

    async def _begin(self, hello: pb.Hello) -> HeldSession:
        try:
            record = self._record(hello, started_at=time())
            return await self._store.sessions.create(str(uuid4()), record, self._timing.ttl_seconds)
        except (GenerationMoved, SessionLost) as error:
            self._generation.doubt()
            raise Unavailable("etcd's generation is being settled", retry_after_seconds=0.2) from error

    async def _come_back(self, hello: pb.Hello) -> HeldSession | None:
        """The session the worker had, attached to us from now on; None when it is gone, and its claims with it.

        An attachment that the worker gave up may have come in between, late: that one is put aside as any other.
        """
        for _ in range(_REATTACH_TRIES):
            found = await self._store.sessions.find(hello.session_id) if hello.session_id else None
            if found is None or found.record.worker_id != hello.worker_id or found.record.own:
                return None
            try:
                held = await self._store.sessions.reattach(found, self._record(hello, found.record.started_at))
            except SessionLost:
                return None
            if held is not None:
                return held
        return None

    async def _kept(self, held: HeldSession, hello: pb.Hello) -> dict[str, HeldClaim]:
        """Which of the holdings etcd still has under this session, by claim_id."""
        named = {each.claim_id for each in hello.holdings}
        found = await self._store.claims.find_many(each.task_id for each in hello.holdings)
        return {
            claim.record.claim_id: claim
            for claim in found.values()
            if claim.record.claim_id in named and claim.record.session_id == held.session_id
        }

    def _record(self, hello: pb.Hello, started_at: float) -> SessionRecord:
        return SessionRecord(
            worker_id=hello.worker_id,
            coordinator_id=self._coordinator_id,
            generation=self._generation.current(),
            started_at=started_at,
            live_address=hello.live_address,
            queues=tuple(hello.queues),
            loops=tuple(hello.loops),
            priorities=tuple(hello.priorities),
        )

    def _welcome(self, session: Session, named: Iterable[str]) -> pb.SessionResponse:
        welcome = pb.Welcome(
            session_id=session.session_id,
            ttl=duration(self._timing.ttl_seconds),
            renew_interval=duration(self._timing.renew_interval_seconds),
            call_interval=duration(self._timing.call_interval_seconds),
            lost_claim_ids=[claim_id for claim_id in named if claim_id not in session.claims],
        )
        return pb.SessionResponse(welcome=welcome)
