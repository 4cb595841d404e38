"""Turns offers into grants: claims in etcd, registers in the ledger, signs, sends; in this order, checking each step.

A claim whose fate is unclear is neither granted nor treated as lost. A claim that the ledger does not register is
deleted. A grant that cannot be sent is taken back at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Final
from uuid import uuid4

from services.coordinator.claims.assigning import Assigned, assign
from services.coordinator.claims.issuing import Issuer
from services.coordinator.claims.lost_claims import LostClaims
from services.coordinator.generation import Generation
from services.coordinator.lease_store import ClaimRecord, HeldClaim, LeaseStore
from services.coordinator.lease_store.claim_keys import ClaimRefusal, ClaimResult, NewClaim
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.sessions.session import AttachedSession
from tenure.domain.errors import TenureError
from tenure.domain.fencing import describe_epoch
from tenure.domain.retry import RetryPolicy
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as checkpoint_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.wire.call_plans import plans_to_text
from tenure.wire.common import duration, seconds
from tenure.wire.token import scopes_to_domain

_log: Final = logging.getLogger(__name__)
_REGISTER: Final = RetryPolicy(max_attempts=3, initial_seconds=0.05, factor=2.0, cap_seconds=0.5)
_MAX_UNCLEAR: Final = 10_000


class ClaimGranter:
    """Grants offers, one batch at a time, of at most MAX_BATCH offers."""

    def __init__(
        self, store: LeaseStore, ledger: LedgerClient, lost_claims: LostClaims, issuer: Issuer, generation: Generation
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._lost_claims = lost_claims
        self._issuer = issuer
        self._generation = generation
        # Claims of this replica that may or may not be in etcd, by task. If one appears later, it was never granted.
        self._unclear: OrderedDict[str, str] = OrderedDict()

    async def grant(self, offers: Sequence[checkpoint_pb.Offer], sessions: Sequence[AttachedSession]) -> int:
        """Grants the offers to sessions with free slots. Returns the number of grants.

        The other tasks are offered again. Raises Unavailable when etcd or the ledger does not answer; claims that were
        made by then are taken back.
        """
        assigned = assign(offers, sessions, asyncio.get_running_loop().time())
        for each in assigned:
            each.session.take_slot(each.tier, suspect=each.offer.suspect)
        try:
            return await self._grant(assigned)
        finally:
            for each in assigned:
                each.session.put_slot_back(each.tier, suspect=each.offer.suspect)

    async def _grant(self, assigned: Sequence[Assigned]) -> int:
        claims = await self._claim(assigned)
        if not claims:
            return 0
        await failpoint("coordinator.after_claim")
        held = list(claims)
        try:
            registered = await retrying(lambda: self._ledger.register(held), _REGISTER)
        except (TenureError, PeerFailed):
            await self._take_back(held)
            raise
        await failpoint("coordinator.after_register")
        unregistered = [each for each in held if each.record.claim_id not in registered]
        if unregistered:  # the ledger knows a higher epoch: etcd may have gone back
            _log.warning(
                "claims were not registered by the ledger and are deleted",
                extra={"tasks": [each.task_id for each in unregistered]},
            )
            metrics.count("tenure_claims_unregistered_total", len(unregistered))
            self._generation.doubt()
        unsent = [each for each in held if each.record.claim_id in registered and not self._send(each, claims[each])]
        await self._take_back([*unregistered, *unsent])
        return len(held) - len(unregistered) - len(unsent)

    async def _claim(self, assigned: Sequence[Assigned]) -> dict[HeldClaim, Assigned]:
        """Claims, and claims again where a dead claim was in the way."""
        assigned_by_claim, dead = await self._claim_once(assigned)
        if dead:
            await self._take_back([holder for holder, _ in dead])
            made_again, _ = await self._claim_once([each for _, each in dead])
            assigned_by_claim.update(made_again)
        return assigned_by_claim

    async def _claim_once(
        self, assigned: Sequence[Assigned]
    ) -> tuple[dict[HeldClaim, Assigned], list[tuple[HeldClaim, Assigned]]]:
        generation = self._generation.current()
        wanted = [self._new_claim(each, generation) for each in assigned]
        assigned_by_claim: dict[HeldClaim, Assigned] = {}
        dead: list[tuple[HeldClaim, Assigned]] = []
        for claimed, each in zip(await self._store.claims.claim_many(wanted), assigned, strict=True):
            if claimed.held is not None:
                assigned_by_claim[claimed.held] = each
            elif self._is_dead(claimed, each.offer):
                assert claimed.holder is not None
                dead.append((claimed.holder, each))
            else:
                self._refused(claimed, each)
        return assigned_by_claim, dead

    def _new_claim(self, each: Assigned, generation: int) -> NewClaim:
        offer, session = each.offer, each.session
        record = ClaimRecord(
            claim_id=str(uuid4()),
            worker_id=session.worker_id,
            session_id=session.session_id,
            generation=generation,
            tenant=offer.tenant,
            reason=offer.reason,
            previous_epoch=offer.previous_epoch,
            loop=offer.loop,
            key_id=self._issuer.key_id,
            tools=tuple(offer.tools.names) if offer.HasField("tools") else None,
            agent=offer.agent,
            labels=tuple(chain.from_iterable(sorted(offer.labels.items()))),
            approvals=tuple(offer.approvals),
            plans=plans_to_text(offer.plans),
            suspect=offer.suspect,
            start_timeout_seconds=seconds(offer.start_timeout),
            progress_timeout_seconds=seconds(offer.progress_timeout),
            lease_ttl_seconds=seconds(offer.lease_ttl),
            renew_interval_seconds=seconds(offer.renew_interval),
            reconnect_grace_seconds=seconds(offer.reconnect_grace) if offer.HasField("reconnect_grace") else None,
            queue=offer.queue,
            scopes=scopes_to_domain(offer.scopes) if offer.HasField("scopes") else None,
        )
        return NewClaim(offer.task_id, record, session.held)

    def _is_dead(self, claimed: ClaimResult, offer: checkpoint_pb.Offer) -> bool:
        """Whether no worker works under the claim in the way.

        The newest Open of a queued task was under that very claim: the task was moved out of it, and only its release
        is still to come. An unclear claim of this replica that appeared in etcd was never granted.
        """
        holder = claimed.holder
        if claimed.refusal is not ClaimRefusal.TAKEN or holder is None:
            return False
        return holder.epoch == offer.previous_epoch or self._unclear.get(offer.task_id) == holder.record.claim_id

    def _refused(self, claimed: ClaimResult, each: Assigned) -> None:
        assert claimed.refusal is not None
        metrics.count("tenure_claims_refused_total", refusal=claimed.refusal.name)
        match claimed.refusal:
            case ClaimRefusal.SESSION_GONE:
                each.session.lose("the session has ended, or is attached to another coordinator")
            case ClaimRefusal.GENERATION:
                self._generation.doubt()
            case ClaimRefusal.UNCLEAR:
                self._unclear[each.offer.task_id] = claimed.wanted.record.claim_id
                if len(self._unclear) > _MAX_UNCLEAR:
                    self._unclear.popitem(last=False)
                self._generation.doubt()
            case ClaimRefusal.TOO_LARGE:
                _log.error(
                    "a task cannot be granted: its tool allowlist is too long; cancel it, or fork it with fewer tools",
                    extra={"task": each.offer.task_id},
                )
            case ClaimRefusal.TAKEN | ClaimRefusal.NOT_SENT:
                pass  # another replica claimed first, a dead claim is about to be deleted, or etcd did not answer

    def _send(self, held: HeldClaim, assigned: Assigned) -> bool:
        """Signs a claim and sends its grant.

        Returns False if the session's lease is in doubt, its stream has ended, or its pool no longer has the tenant.
        """
        now = asyncio.get_running_loop().time()
        if not assigned.session.may_be_granted(now) or not assigned.session.takes_tenant(held.record.tenant):
            return False
        renew_interval_seconds = held.record.renew_interval_seconds
        grant = coordinator_pb.Grant(
            task_id=held.task_id,
            claim_id=held.record.claim_id,
            token=self._issuer.issue(held),
            loop=held.record.loop,
            priority=assigned.offer.priority,
            renew_interval=duration(renew_interval_seconds) if renew_interval_seconds else None,
        )
        sent = assigned.session.send_grant(held, grant, now)
        if sent:
            metrics.count("tenure_grants_total")
            fields = {"task": held.task_id, "epoch": describe_epoch(held.epoch), "worker": held.record.worker_id}
            fields["claim"] = held.record.claim_id
            _log.info("granted a task", extra=fields)
        return sent

    async def _take_back(self, claims: Sequence[HeldClaim]) -> None:
        results = await asyncio.gather(*(self._lost_claims.delete(each) for each in claims), return_exceptions=True)
        for held, result in zip(claims, results, strict=True):
            if isinstance(result, TenureError):
                _log.warning("a claim could not be deleted", extra={"task": held.task_id, "error": result})
            elif isinstance(result, BaseException):
                raise result
