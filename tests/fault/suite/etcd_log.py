"""All that ever happened to the claims in etcd, recorded from its first revision on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from checker.history import GenerationChange, Grant
from services.coordinator.etcd.calls import EtcdError
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.watch import (
    KeyChange,
    KeyChanges,
    Resync,
    ResyncReason,
)
from services.coordinator.lease_store.generation_key import read_generation
from services.coordinator.lease_store.records import CLAIMS, GENERATION_KEY, read_claim
from tenure.domain.errors import TenureError
from tests.support.fix_coordinator import USUAL_PREFIX
from tests.support.patience import PATIENCE_SECONDS

PREFIX = USUAL_PREFIX.encode()


@dataclass(slots=True)
class EtcdLog:
    """`run` is its duty. Grants are kept in the order in which they were made."""

    endpoints: Sequence[str]
    generations: list[GenerationChange] = field(default_factory=list)
    _lives: dict[tuple[int, bytes, int], Grant] = field(default_factory=dict)
    _alive: dict[bytes, int] = field(default_factory=dict)
    _revision: int = 0
    _life: int = 0

    def grants(self, task_ids: set[str]) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._lives.values() if grant.task_id in task_ids)

    def held(self, task_ids: set[str]) -> set[str]:
        """Those of the tasks that have a claim now, as far as is known."""
        return task_ids & {key.removeprefix(CLAIMS).decode() for key in self._alive}

    async def run(self) -> None:
        async with EtcdClient(self.endpoints, namespace=PREFIX) as client:
            while True:
                await self._one_life(client)

    async def _one_life(self, client: EtcdClient) -> None:
        """Until etcd is another one, or went back: then all events come again from the first revision."""
        async with aclosing(client.watch(b"", 1)) as items:
            async for item in items:
                if isinstance(item, KeyChanges):
                    for change in item.changes:
                        self._note(change)
                    self._revision = item.revision
                elif isinstance(item, Resync):
                    assert item.reason is not ResyncReason.COMPACTED, "what was not seen cannot be judged"
                    self._end_life()

    async def caught_up(self) -> None:
        """Returns once all that etcd has now is noted: seen by a key of our own."""
        async with EtcdClient(self.endpoints, namespace=PREFIX) as client, asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    marked = (await client.put(b"watched-so-far", b"")).revision
                    break
                except (EtcdError, TenureError):
                    await asyncio.sleep(0.2)
            while self._revision < marked:
                await asyncio.sleep(0.02)

    def _end_life(self) -> None:
        """What that etcd had is gone with it; what another one still has comes again."""
        for key, born in self._alive.items():
            place = self._life, key, born
            self._lives[place] = replace(self._lives[place], deleted_revision=self._revision)
        self._alive.clear()
        self._life, self._revision = self._life + 1, 0

    def _note(self, change: KeyChange) -> None:
        key, value = change.key_value.key, change.key_value
        if key == GENERATION_KEY and not change.deleted:
            self.generations.append(
                GenerationChange(
                    revision=value.mod_revision, generation=read_generation(value.value, PREFIX), life=self._life
                )
            )
        elif key.startswith(CLAIMS) and change.deleted:
            born = self._alive.pop(key)
            place = self._life, key, born
            self._lives[place] = replace(self._lives[place], deleted_revision=value.mod_revision)
        elif key.startswith(CLAIMS):
            self._note_claim(change)

    def _note_claim(self, change: KeyChange) -> None:
        held, value = read_claim(change.key_value), change.key_value
        assert held is not None, f"{value.key!r} holds no claim"
        self._alive[value.key] = value.create_revision
        self._lives[self._life, value.key, value.create_revision] = Grant(
            task_id=held.task_id,
            claim_id=held.record.claim_id,
            generation=held.record.generation,
            created_revision=value.create_revision,
            last_revision=value.mod_revision,
            session_id=held.record.session_id,
            holder=held.record.worker_id,
            life=self._life,
        )
