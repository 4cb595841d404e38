"""Attaches sessions: a new one, or one from a broken stream of this or another replica."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from services.coordinator.lease_store import GenerationMoved, HeldSession, SessionLost, SessionRecord
from services.coordinator.sessions.lease_risk import LeaseRisk
from services.coordinator.sessions.session import AttachedSession, Timing, WorkerProfile
from tenure.domain.access import Principal, certificate_name, check_holder
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import SessionOwner, proof_digest, secret_digest
from tenure.domain.outbound import is_from_this_machine, peer_ip
from tenure.runtime.observability import metrics
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.common import duration

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.lease_store import HeldClaim, LeaseStore
    from services.coordinator.pools import PoolEnforcement, WorkerPools
    from services.coordinator.sessions.live_addresses import LiveAddresses
    from tenure.domain.outbound import IPAddress


# The sessions attached to this replica, and those that were attached a moment ago.

_MAX_DEPARTED: Final = 1000


class Sessions:
    """Attached sessions by session id, at most one attachment each. Iteration yields the attached ones."""

    def __init__(self) -> None:
        self._attached: dict[str, AttachedSession] = {}
        # A lost claim's progress is needed after the stream of its session has ended.
        self._departed: OrderedDict[str, AttachedSession] = OrderedDict()
        self._risk = LeaseRisk()

    def __iter__(self) -> Iterator[AttachedSession]:
        return iter(list(self._attached.values()))

    def __len__(self) -> int:
        return len(self._attached)

    def get(self, session_id: str) -> AttachedSession | None:
        """Returns the session if it is attached here."""
        return self._attached.get(session_id)

    def last_known(self, session_id: str) -> AttachedSession | None:
        """Returns the session if it is attached here, or was lately."""
        return self._attached.get(session_id) or self._departed.get(session_id)

    @contextmanager
    def sampled(self) -> Iterator[Sessions]:
        """Reports the slots and the leases of the attached workers inside the block."""
        with metrics.on_sample(self._sample):
            yield self

    def _sample(self) -> None:
        now = asyncio.get_running_loop().time()
        free = sum(session.slots(now).any for session in self._attached.values())
        used = sum(len(session.claims) for session in self._attached.values())
        metrics.gauge("tenure_slots", free, state="free")
        metrics.gauge("tenure_slots", used, state="used")
        self._risk.sample(self._attached.values(), now)

    def holders_of(self, task_ids: Collection[str]) -> list[tuple[str, AttachedSession]]:
        """Returns the tasks among these that attached sessions hold.

        One pass for all tasks, because sessions hold thousands.
        """
        if not task_ids:
            return []
        return [
            (claim.held.task_id, session)
            for session in self._attached.values()
            for claim in session.claims.values()
            if claim.held.task_id in task_ids
        ]

    def attach(self, session: AttachedSession) -> None:
        """Adds a session. Ends an older attachment of it, which ends only that attachment's stream."""
        former = self._attached.get(session.session_id)
        self._attached[session.session_id] = session
        self._departed.pop(session.session_id, None)
        metrics.gauge("tenure_sessions", len(self._attached))
        if former is not None:
            former.end(None)

    def detach(self, session: AttachedSession) -> None:
        """Removes a session whose stream is over."""
        session.end(None)
        if self._attached.get(session.session_id) is not session:
            return
        del self._attached[session.session_id]
        self._departed[session.session_id] = session
        if len(self._departed) > _MAX_DEPARTED:
            self._departed.popitem(last=False)
        metrics.gauge("tenure_sessions", len(self._attached))


_log: Final = logging.getLogger(__name__)
_SETTLING_SECONDS: Final = 1.0
_REATTACH_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Greeting:
    """A Hello with the caller that sent it. `live_address`: the one to record, "" for none."""

    hello: pb.Hello
    owner: SessionOwner
    connected_from: IPAddress | None
    live_address: str = ""

    @classmethod
    def of(cls, hello: pb.Hello, principal: Principal, peer: str) -> Greeting:
        """`peer`: the connection, as gRPC names it. Raises PermissionDenied for another worker's id."""
        check_holder(principal, hello.worker_id)
        identity = "" if principal.role is None else principal.name
        return cls(hello, SessionOwner(identity, secret_digest(hello.session_secret)), peer_ip(peer))


class SessionAttach:
    """Answers Hello."""

    def __init__(
        self,
        coordinator_id: str,
        store: LeaseStore,
        generation: Generation,
        sessions: Sessions,
        timing: Timing,
        pools: WorkerPools,
        enforcement: PoolEnforcement,
        live_addresses: LiveAddresses,
    ) -> None:
        self._live_addresses = live_addresses
        self._coordinator_id = coordinator_id
        self._store = store
        self._generation = generation
        self._sessions = sessions
        self._timing = timing
        self._pools = pools
        self._enforcement = enforcement

    async def attach(self, greeting: Greeting) -> AttachedSession:
        """Returns the attached session, with Welcome in its outbox.

        Raises Unavailable: the worker attaches elsewhere. Raises PermissionDenied for the session of another worker
        (OTHER_HOLDER), and for a worker that its pool does not admit (NOT_IN_POOL, OUTSIDE_POOL).
        """
        self._pools.admit(certificate_name(greeting.owner.identity), WorkerProfile.of(greeting.hello))
        clock = asyncio.get_running_loop().time
        out_of_space = self._generation.is_out_of_space
        if not out_of_space:
            await self._generation.settled(_SETTLING_SECONDS)
        began, hello = clock(), greeting.hello
        live_address = await self._live_addresses.admit(hello.worker_id, hello.live_address, greeting.connected_from)
        greeting = replace(greeting, live_address=live_address)
        held, former = await (self._reattach_unwritten(greeting) if out_of_space else self._reattach(greeting)), True
        if held is None:
            held, former = await self._begin(greeting), False
        # The remaining TTL of a lease that is older than this stream is unknown until its next renewal.
        session = AttachedSession(held, hello, self._timing, attached_at=began, renewed_at=None if former else began)
        session.unwritten = out_of_space
        kept_claims = await self._kept_claims(held, hello, out_of_space=out_of_space) if former else {}
        for held_claim in kept_claims.values():
            session.hold(held_claim, clock(), named=True)
        session.resume(hello.holdings, clock())
        before = self._sessions.last_known(held.session_id)
        if before is not None:
            session.carry_on(before, clock())
        session.observe(hello.holdings, clock())
        session.send(self._welcome(session, (each.claim_id for each in hello.holdings)))
        mark = await self._store.drains.find(held.session_id) if former else None
        if mark is not None:
            session.request_drain(mark.message)
        self._sessions.attach(session)
        self._enforcement.apply(session)  # without a pause after the attach: no grant and no change of pools is missed
        _log.info(
            "attached a worker",
            extra={
                "worker": session.worker_id,
                "session": session.session_id,
                "former": former,
                "claims": len(kept_claims),
            },
        )
        return session

    async def _begin(self, greeting: Greeting) -> HeldSession:
        try:
            record = self._record(greeting, started_at=time())
            return await self._store.sessions.create(str(uuid4()), record, self._timing.ttl_seconds)
        except (GenerationMoved, SessionLost) as error:
            self._generation.doubt()
            raise Unavailable("etcd's generation is being settled", retry_after_seconds=0.2) from error

    async def _reattach(self, greeting: Greeting) -> HeldSession | None:
        """Attaches the worker's former session to this replica. None: the session is lost with its claims.

        A late attachment that the worker gave up may have come in between; it is replaced like any other. Raises
        PermissionDenied if another worker opened the session: ListWorkers shows the ids of all sessions.
        """
        for _ in range(_REATTACH_TRIES):
            stored = await self._find(greeting)
            if stored is None:
                return None
            try:
                held = await self._store.sessions.reattach(stored, self._record(greeting, stored.record.started_at))
            except SessionLost:
                return None
            if held is not None:
                return held
        return None

    async def _reattach_unwritten(self, greeting: Greeting) -> HeldSession:
        """Attaches the worker's former session while etcd is out of space: renewals work, but a put does not.

        The key goes on naming the former coordinator. That one ends no session meanwhile, and grants nothing. When etcd
        has space again, the worker is asked to attach once more, with a put. Raises Unavailable (ETCD_OUT_OF_SPACE)
        when there is no such session: a new one needs a put.
        """
        stored = await self._find(greeting)
        if stored is None or stored.record.generation != (await self._store.generation.read()).generation:
            self._generation.current()  # raises the reason
            raise Unavailable("etcd has space again: attach again", retry_after_seconds=0.2)
        return stored

    async def _find(self, greeting: Greeting) -> HeldSession | None:
        """Returns the worker's former session. Raises PermissionDenied if another worker opened it."""
        hello = greeting.hello
        stored = await self._store.sessions.find(hello.session_id) if hello.session_id else None
        if stored is None or stored.record.worker_id != hello.worker_id or stored.record.own:
            return None
        stored.record.owner.check(greeting.owner)
        return stored

    async def _kept_claims(self, held: HeldSession, hello: pb.Hello, *, out_of_space: bool) -> dict[str, HeldClaim]:
        """Returns the reported claims that etcd still has under this session, by claim id.

        Some releases of etcd refuse even transactions that only read while they are out of space, but no list.
        """
        named, claims = {each.claim_id for each in hello.holdings}, self._store.claims
        stored = await (claims.list_all() if out_of_space else claims.find_many(one.task_id for one in hello.holdings))
        return {
            claim.record.claim_id: claim
            for claim in stored.values()
            if claim.record.claim_id in named and claim.record.session_id == held.session_id
        }

    def _record(self, greeting: Greeting, started_at: float) -> SessionRecord:
        hello = greeting.hello
        return SessionRecord(
            worker_id=hello.worker_id,
            coordinator_id=self._coordinator_id,
            generation=self._generation.current(),
            started_at=started_at,
            live_address=greeting.live_address,
            queues=tuple(hello.queues),
            loops=tuple(hello.loops),
            priorities=tuple(hello.priorities),
            is_local=is_from_this_machine(greeting.connected_from),
            identity=greeting.owner.identity,
            secret_digest=greeting.owner.secret_digest,
            proof_digest=proof_digest(hello.session_secret),
            build=hello.build,
        )

    def _welcome(self, session: AttachedSession, named: Iterable[str]) -> pb.SessionResponse:
        welcome = pb.Welcome(
            session_id=session.session_id,
            ttl=duration(self._timing.ttl_seconds),
            renew_interval=duration(self._timing.renew_interval_seconds),
            call_interval=duration(self._timing.call_interval_seconds),
            lost_claim_ids=[claim_id for claim_id in named if claim_id not in session.claims],
        )
        return pb.SessionResponse(welcome=welcome)
