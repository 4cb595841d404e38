"""The generation: the ledger's and etcd's count of etcd's lives have to agree before anything is granted.

An etcd that was restored or replaced goes back in revisions, and its old claims may revive. So the generation is
compared at the start, after every reconnect and whenever something does not fit; where it does not hold, it is raised
by compare-and-set in the ledger, then in etcd, and whatever is older is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from services.coordinator.losses import Losses, LostClaim
from tenure.domain.epochs import compose_epoch, describe_epoch
from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.states import Reason
from tenure.runtime import metrics
from tenure.runtime.failpoint import failpoint

if TYPE_CHECKING:
    from services.coordinator.lease_store import LeaseStore
    from services.coordinator.lease_store.generation_key import EtcdGeneration
    from services.coordinator.ledger import Ledger
    from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_POLL_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 2.0
_ROUNDS: Final = 10


class Generation:
    """The generation this replica works in. While it is in doubt nothing is granted and no session begins."""

    def __init__(
        self, store: LeaseStore, ledger: Ledger, losses: Losses, on_health: Callable[[bool], Awaitable[None]]
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._losses = losses
        self._on_health = on_health
        self._settled: int | None = None
        self._last: int | None = None
        self._revision = 0
        self._lost_life = -1
        self._silent = False
        self._doubted = asyncio.Event()
        self._looked = asyncio.Event()
        self._now_settled = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether anything may be granted."""
        return self._settled is not None

    def current(self) -> int:
        """The generation. Raises Unavailable while it is in doubt."""
        if self._settled is None:
            raise Unavailable("etcd is not reached, or its generation is being settled", reason="ETCD_UNAVAILABLE")
        return self._settled

    async def first_look(self) -> None:
        """Returns once `watch_over` has looked for the first time, whatever it found."""
        await self._looked.wait()

    async def settled(self, within_seconds: float) -> int:
        """The generation, waited for. Raises Unavailable when it stays in doubt."""
        with suppress(TimeoutError):  # told below, unless it was settled in this very moment
            async with asyncio.timeout(within_seconds):
                await self._now_settled.wait()
        return self.current()

    def doubt(self, *, lost_life: int = -1) -> None:
        """Something does not fit: compare before anything else is granted.

        `lost_life`: etcd went back behind what was seen in that generation, which therefore must not be granted in.
        """
        self._unsettle()
        self._lost_life = max(self._lost_life, lost_life)
        self._doubted.set()

    async def watch_over(self) -> None:
        """Duty: look at etcd every second, settle what is in doubt, and say whether this replica can serve."""
        while True:
            self._doubted.clear()
            try:
                await self._check()
                self._silent = False
            except TenureError as error:
                if not self._silent:  # once for each outage
                    _log.warning("nothing is granted until etcd and the ledger answer", extra={"error": error})
                self._silent = True
                self._unsettle()
            await self._on_health(self.is_settled)
            self._looked.set()
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._doubted.wait()
            except TimeoutError:
                continue

    def _unsettle(self) -> None:
        self._settled = None
        self._now_settled.clear()

    async def _check(self) -> None:
        etcd = await self._store.generation.read(timeout_seconds=_ANSWER_SECONDS)
        unchanged = self._settled is not None and etcd.generation == self._settled and etcd.revision >= self._revision
        if not unchanged:
            if self._last is not None and etcd.revision < self._revision:
                self._lost_life = max(self._lost_life, self._last)
            etcd = await self._settle()
        self._revision = etcd.revision

    async def _settle(self) -> EtcdGeneration:
        for _ in range(_ROUNDS):
            ledger, etcd = await self._ledger.get_epochs(), await self._store.generation.read()
            why = self._why_raise(ledger, etcd)
            if why is None:
                await self._adopt(ledger.generation)
                return etcd
            await self._raise(ledger.generation, etcd.generation, why)
        raise Unavailable("the generation does not settle: others keep raising it")

    def _why_raise(self, ledger: pb.GetEpochsResponse, etcd: EtcdGeneration) -> str | None:
        if etcd.generation != ledger.generation:
            told = "none" if etcd.generation is None else etcd.generation
            return f"etcd is at generation {told}, the ledger at {ledger.generation}"
        if compose_epoch(etcd.generation, etcd.revision) < ledger.highest_epoch:
            return f"etcd is at revision {etcd.revision}, epoch {describe_epoch(ledger.highest_epoch)} was granted"
        if ledger.generation <= self._lost_life:
            return "etcd went back in its revisions"
        return None

    async def _raise(self, ledger: int, etcd: int | None, why: str) -> None:
        # A ledger that was restored itself may be behind etcd: the new generation is above both.
        await failpoint("coordinator.before_raise")
        target = await self._ledger.raise_generation(max(ledger, etcd or 0), why)
        await failpoint("coordinator.after_ledger_raise")
        moved = await self._store.generation.move(etcd, target)
        await failpoint("coordinator.after_raise")
        metrics.count("tenure_generation_raised_total")
        _log.warning("raised the generation", extra={"generation": target, "why": why, "by_us": moved})

    async def _adopt(self, generation: int) -> None:
        if generation != self._last:
            await self._clear_older(generation)
        self._settled = self._last = generation
        self._now_settled.set()
        metrics.gauge("tenure_generation", generation)

    async def _clear_older(self, generation: int) -> None:
        """Claims first: a claim that goes alone is requeued by who deleted it, so that the reason is told truly."""
        found = await self._store.claims.list_all()
        claims = [each for each in found.values() if each.record.generation < generation]
        await self._store.claims.delete_many(claims)
        message = f"etcd was restored or replaced; claims from before generation {generation} do not hold"
        await self._losses.requeue(LostClaim.of(each, Reason.CLAIM_LOST, message) for each in claims)
        for session in await self._store.sessions.list_all():
            if session.record.generation < generation:
                await self._store.sessions.end(session)
