"""Keeps the generation: the ledger and etcd must agree on the number of etcd's lives before any claim is granted.

An etcd that was restored or replaced goes back in its revisions, and its old claims may exist again. So this module
compares the two generations at the start, after every reconnect and after every inconsistency. When they differ, it
raises the generation by compare-and-set in the ledger, then in etcd, and deletes everything of older generations.

Why an old token never supersedes a newer one, even after an unnoticed restore:
- A token is signed only after the ledger wrote its (epoch, claim_id) to the task row, and the ledger requires a higher
  epoch than the last one there. So the tokens of a task ascend in the order of their creation, whatever etcd does. A
  restore that goes unnoticed, because the revision has passed the old maximum again, only skips numbers.
- The ledger accepts only a claim that *equals* the task row, so a higher epoch in an older owner's hands is worthless.
  The tool service accepts a claim that is not lower than its fence. Its fence never exceeds the task row, so the next
  token passes it.
- A claim that a restore brought back is not the registered one: no token is signed for it, and the reconciliation
  deletes it.
- The ledger registers no claim of an older generation: a replica that slept through a raise grants nothing from before.
- A deletion names revision and lease, and etcd never gives a lease id twice: it hits no claim of another life of etcd.
So the raise is not what makes old tokens harmless. It allows new claims to be registered at all while etcd is behind,
and deletes at once everything that a restore brought back. There is one exception: when ledger and etcd are both
restored but the tool service's database is not, the tool service may hold epochs that neither knows (docs/restore.md).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.lease_store import ETCD_OUT_OF_SPACE, ETCD_UNAVAILABLE, HeldSession, LeaseStore
from services.coordinator.lease_store.generation_key import EtcdGeneration
from services.coordinator.ledger_client import LedgerClient
from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.fencing import FIRST_GENERATION, compose_epoch, describe_epoch, split_epoch
from tenure.domain.states import Reason
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
_ROUNDS: Final = 10
_SESSIONS_AT_ONCE: Final = 32
_NO_SPACE: Final = "NOSPACE"


def is_half_raised(ledger: pb.GetEpochsResponse, etcd: EtcdGeneration, worked_in: int) -> bool:
    """Whether a replica has raised the ledger and etcd has not followed yet: then etcd is moved to that generation.

    Another raise would waste a generation, and replicas that notice at once could overtake each other for ever.
    If anything was granted in the ledger's generation, or this replica has worked in it, then etcd had that generation
    and lost it: the ledger has to be raised.
    """
    used = max(worked_in, split_epoch(ledger.highest_epoch)[0], FIRST_GENERATION)
    return (etcd.generation or 0) < ledger.generation and used < ledger.generation


class Generation:
    """The generation that this replica works in. While it is in doubt, no claim is granted and no session begins."""

    def __init__(
        self,
        store: LeaseStore,
        ledger: LedgerClient,
        lost_claims: LostClaims,
        on_health: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._lost_claims = lost_claims
        self._on_health = on_health
        self._settled: int | None = None
        self._why_not = ("etcd is unreachable, or its generation is being settled; try again later", ETCD_UNAVAILABLE)
        self._last: int | None = None
        self._cleared = -1
        self._revision = 0
        self._lost_life = -1
        self._doubts = 0
        self._logged_reason: str | None = None
        self._no_space_at = -math.inf
        self._doubted = asyncio.Event()
        self._checked_once = asyncio.Event()
        self._now_settled = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether claims may be granted."""
        return self._settled is not None

    def current(self) -> int:
        """Returns the generation. Raises Unavailable while it is in doubt."""
        if self._settled is None:
            message, reason = self._why_not
            raise Unavailable(message, reason=reason)
        return self._settled

    @property
    def is_out_of_space(self) -> bool:
        """Whether etcd had the alarm NOSPACE at the last check: it takes no puts, but renewals and deletes."""
        return self._why_not[1] == ETCD_OUT_OF_SPACE and self._settled is None

    def was_out_of_space(self, within_seconds: float) -> bool:
        """Whether etcd had the alarm NOSPACE at a check within this time, or at the one before."""
        return monotonic() - self._no_space_at < within_seconds + 2 * _POLL_SECONDS

    async def first_look(self) -> None:
        """Waits for the first check of `watch_over`, whatever its result."""
        await self._checked_once.wait()

    async def settled(self, within_seconds: float) -> int:
        """Waits for the generation. Raises Unavailable when it stays in doubt."""
        # `current` raises the error, unless the generation was settled at this very moment
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._now_settled.wait()
        return self.current()

    def doubt(self, *, lost_life: int = -1) -> None:
        """Puts the generation in doubt after an inconsistency: no claim is granted before the next comparison.

        `lost_life`: etcd went back behind a revision seen in that generation, so no claim may be granted in it any
        more.
        """
        self._doubts += 1
        self._lost_life = max(self._lost_life, lost_life)
        self._unsettle("etcd's generation is being settled", ETCD_UNAVAILABLE)
        self._doubted.set()

    async def watch_over(self) -> None:
        """Checks etcd every second, settles a generation in doubt, and reports the health of this replica. A duty."""
        while True:
            note_progress()
            self._doubted.clear()
            try:
                await self._check()
            except (TenureError, PeerFailed) as error:
                self._fail(error)
            await self._on_health(self.is_settled)
            self._checked_once.set()
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._doubted.wait()
            except TimeoutError:
                continue

    def _fail(self, error: TenureError | PeerFailed) -> None:
        reason = error.reason if isinstance(error, TenureError) else ETCD_UNAVAILABLE
        if self._logged_reason != reason:  # once per outage
            _log.warning("no claim is granted until etcd and the ledger answer", extra={"error": error})
        self._logged_reason = reason
        self._unsettle(f"no claim is granted: {error}", reason)

    def _unsettle(self, message: str, reason: str) -> None:
        self._settled, self._why_not = None, (message, reason)
        self._now_settled.clear()

    async def _check(self) -> None:
        await self._check_alarms()
        etcd = await self._store.generation.read(timeout_seconds=_ANSWER_SECONDS)
        unchanged = self._settled is not None and etcd.generation == self._settled and etcd.revision >= self._revision
        if not unchanged:
            if self._last is not None and etcd.revision < self._revision:
                self._lost_life = max(self._lost_life, self._last)
            etcd = await self._settle()
        self._revision = etcd.revision

    async def _check_alarms(self) -> None:
        """Raises Unavailable while etcd has an alarm: it answers reads, but few writes or none.

        Some releases still accept claims, because they do not count the puts of nested transactions; those claims would
        be the last ones. Other releases refuse even read-only transactions. So this check comes first.
        """
        alarms = await self._store.alarms(timeout_seconds=_ANSWER_SECONDS)
        metrics.gauge("tenure_etcd_out_of_space", float(_NO_SPACE in alarms))
        if not alarms:
            return
        if _NO_SPACE in alarms:
            self._no_space_at = monotonic()
            advice = "compact it, defragment each member, then `etcdctl alarm disarm`; running tasks go on meanwhile"
            raise Unavailable(f"etcd is out of space, and no claim is granted: {advice}", reason=ETCD_OUT_OF_SPACE)
        raise Unavailable(f"etcd has raised the alarm {', '.join(sorted(alarms))}", reason=ETCD_UNAVAILABLE)

    async def _settle(self) -> EtcdGeneration:
        for _ in range(_ROUNDS):
            doubts = self._doubts
            # The ledger first: an epoch that it registers after this is not a reason to think that etcd went back.
            ledger, etcd = await self._ledger.get_epochs(), await self._store.generation.read()
            if await self._was_raised_between(ledger, etcd):
                continue
            why = self._why_raise(ledger, etcd)
            if why is not None:
                await self._raise(ledger, etcd, why)
                continue
            if ledger.generation != self._cleared:
                await self._clear_older(ledger.generation)
                self._cleared = ledger.generation
            if doubts == self._doubts:  # a doubt that came meanwhile may rest on newer facts than this comparison
                self._adopt(ledger.generation)
                return etcd
        raise Unavailable(
            "the generation does not settle, because other replicas keep raising it", reason=ETCD_UNAVAILABLE
        )

    def _why_raise(self, ledger: pb.GetEpochsResponse, etcd: EtcdGeneration) -> str | None:
        if etcd.generation != ledger.generation:
            etcd_generation = "none" if etcd.generation is None else etcd.generation
            return f"etcd is at generation {etcd_generation}, the ledger at {ledger.generation}"
        if compose_epoch(etcd.generation, etcd.revision) < ledger.highest_epoch:
            return f"etcd is at revision {etcd.revision}, epoch {describe_epoch(ledger.highest_epoch)} was granted"
        if ledger.generation <= self._lost_life:
            return "etcd went back in its revisions"
        return None

    async def _was_raised_between(self, ledger: pb.GetEpochsResponse, etcd: EtcdGeneration) -> bool:
        """Returns whether etcd is ahead only because another replica raised both after this replica read the ledger.

        A raise starts with the ledger, so a ledger that is still behind now was itself restored.
        """
        if etcd.generation is None or etcd.generation <= ledger.generation:
            return False
        return (await self._ledger.get_epochs()).generation != ledger.generation

    async def _raise(self, ledger: pb.GetEpochsResponse, etcd: EtcdGeneration, why: str) -> None:
        await failpoint("coordinator.before_raise")
        target = ledger.generation
        if not is_half_raised(ledger, etcd, self._worked_in()):
            # A ledger that was restored itself may be behind etcd: the new generation is above both.
            target = await self._ledger.raise_generation(max(ledger.generation, etcd.generation or 0), why)
        await failpoint("coordinator.after_ledger_raise")
        moved = await self._store.generation.move(etcd.generation, target)
        await failpoint("coordinator.after_raise")
        if moved:
            metrics.count("tenure_generation_raised_total")
        _log.warning("raised the generation", extra={"generation": target, "why": why, "by_us": moved})

    def _worked_in(self) -> int:
        """The newest generation that this replica knows to have been in use."""
        return max(self._lost_life, self._last or 0)

    def _adopt(self, generation: int) -> None:
        if self._logged_reason is not None or generation != self._last:
            _log.info("granting in this generation", extra={"generation": generation})
        self._logged_reason = None
        self._settled = self._last = generation
        self._now_settled.set()
        metrics.gauge("tenure_generation", generation)

    async def _clear_older(self, generation: int) -> None:
        """Deletes everything of older generations.

        Claims come first: this replica requeues their tasks with the true reason. After a deleted session the key watch
        would requeue them with another one.
        """
        await self._store.leases.delete_older(generation)
        result = await self._store.claims.list_all()
        claims = [each for each in result.values() if each.record.generation < generation]
        sessions = [each for each in await self._store.sessions.list_all() if each.record.generation < generation]
        if not claims and not sessions:
            return
        await self._store.claims.delete_many(claims)
        message = f"etcd was restored or replaced; claims of generations before {generation} are void"
        await self._lost_claims.requeue(LostClaim.of(each, Reason.CLAIM_LOST, message) for each in claims)
        await self._end_sessions(sessions)
        fields = {"generation": generation, "claims": len(claims), "sessions": len(sessions)}
        _log.warning("ended the sessions and claims of older generations; their tasks are queued again", extra=fields)

    async def _end_sessions(self, sessions: Sequence[HeldSession]) -> None:
        for start in range(0, len(sessions), _SESSIONS_AT_ONCE):
            batch = sessions[start : start + _SESSIONS_AT_ONCE]
            results = await asyncio.gather(*map(self._store.sessions.end, batch), return_exceptions=True)
            for failure in results:
                if isinstance(failure, BaseException):
                    raise failure
