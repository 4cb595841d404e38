"""What this worker holds: for each task its claim, its progress and the coroutine that works on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.worker.interrupts import Interrupts
from services.worker.live_text import LiveText
from services.worker.progress import ProgressHeard
from tenure.domain.task import Priority
from tenure.domain.token import Claims
from tenure.runtime.failpoint import failpoint_enabled
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.enums import PRIORITIES
from tenure.wire.token import read_claims


@dataclass(slots=True, eq=False)
class Holding:
    """One claim. `token` is replaced when the coordinator signs it anew; the claims stay the same."""

    claims: Claims
    token: token_pb2.FencingToken
    loop: str
    tier: Priority = Priority.NORMAL
    progress: ProgressHeard = field(default_factory=ProgressHeard)
    interrupts: Interrupts = field(default_factory=Interrupts)
    live: LiveText = field(default_factory=LiveText)
    work: asyncio.Task[None] | None = None
    lost: bool = False

    @classmethod
    def of_grant(cls, grant: pb.Grant) -> Holding:
        """A claim as it was granted. Unauthenticated when its token cannot be read."""
        return cls(read_claims(grant.token), grant.token, grant.loop, PRIORITIES.to_domain(grant.priority))

    @property
    def task_id(self) -> str:
        return self.claims.task_id

    def drop(self) -> None:
        """The claim is lost: stop at once, write nothing."""
        self.lost = True
        if self.work is not None and not failpoint_enabled("worker.ignore_trust_window"):
            self.work.cancel()

    def to_wire(self) -> pb.Holding:
        """As renewals name it."""
        return pb.Holding(task_id=self.task_id, claim_id=self.claims.claim_id, progress=self.progress.to_wire())


class Holdings:
    """All claims held, by task."""

    def __init__(self) -> None:
        self._by_task: dict[str, Holding] = {}
        self._changed = asyncio.Event()
        self.calls_went_on = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_task)

    def __iter__(self) -> Iterator[Holding]:
        return iter(list(self._by_task.values()))

    def by_tier(self) -> Counter[Priority]:
        """How many of each tier."""
        return Counter(holding.tier for holding in self._by_task.values())

    def get(self, task_id: str) -> Holding | None:
        return self._by_task.get(task_id)

    def add(self, holding: Holding) -> None:
        """Takes it in. A claim of the same task that was held before is lost: two never hold at once."""
        former = self._by_task.get(holding.task_id)
        if former is not None:
            former.drop()
        self._by_task[holding.task_id] = holding
        holding.progress.on_call = self.calls_went_on.set

    def remove(self, holding: Holding) -> None:
        """Takes it out, unless a newer claim of the task has taken its place."""
        if self._by_task.get(holding.task_id) is holding:
            del self._by_task[holding.task_id]
        self._changed.set()

    def drop_claims(self, claim_ids: set[str]) -> None:
        """These claims are gone."""
        for holding in self:
            if holding.claims.claim_id in claim_ids:
                holding.drop()

    def replace_token(self, token: token_pb2.FencingToken) -> None:
        """The same claim, signed anew."""
        claims = read_claims(token)
        holding = self.get(claims.task_id)
        if holding is not None and holding.claims.fence == claims.fence:
            holding.token = token

    def to_wire(self) -> list[pb.Holding]:
        """As Hello and renewals name them; lost ones are no longer held."""
        return [holding.to_wire() for holding in self if not holding.lost]

    def take_calls(self) -> list[pb.Holding]:
        """Those whose model call went on since this was asked the last time."""
        self.calls_went_on.clear()
        told = [holding for holding in self if holding.progress.call_went_on and not holding.lost]
        for holding in told:
            holding.progress.call_went_on = False
        return [holding.to_wire() for holding in told]

    async def wait_empty(self) -> None:
        """Waits until nothing is held."""
        while self._by_task:
            self._changed.clear()
            await self._changed.wait()
