"""The generation key: which life of etcd this is. Every claim and session is made on the condition that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from services.coordinator.etcd.transactions import (
    Compare,
    Get,
    Txn,
    absent,
    value_is,
)
from services.coordinator.lease_store.records import GENERATION_KEY
from services.coordinator.lease_store.refusals import ETCD_UNREADABLE, asking_etcd
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import MAX_GENERATION

if TYPE_CHECKING:
    from services.coordinator.etcd.client import EtcdClient


class EtcdGeneration(NamedTuple):
    """What etcd says: its generation, None when it was never told one, and its revision, at one moment."""

    generation: int | None
    revision: int


class GenerationKey:
    """Reads and moves the key."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    async def read(self, *, timeout_seconds: float | None = None) -> EtcdGeneration:
        """Linearizable. Raises Unavailable, also when the key holds no generation."""
        with asking_etcd():
            result = await self._etcd.txn(Txn(then=(Get(GENERATION_KEY),)), timeout_seconds=timeout_seconds)
        key_values = result.key_values
        return EtcdGeneration(read_generation(key_values[0].value) if key_values else None, result.revision)

    async def move(self, expected: int | None, target: int) -> bool:
        """Compare-and-set; whether it is `target` because of us. Raises Unavailable, also when that is not known."""
        held = absent(GENERATION_KEY) if expected is None else _is(expected)
        with asking_etcd():
            put = await self._etcd.put(GENERATION_KEY, write_generation(target), only_if=(held,))
        return put.succeeded


def _is(generation: int) -> Compare:
    return value_is(GENERATION_KEY, write_generation(generation))


def write_generation(generation: int) -> bytes:
    return str(generation).encode()


def read_generation(value: bytes) -> int:
    """Raises Unavailable when the key holds something else: nobody may guess a generation."""
    if not value.isdigit() or len(value) > len(str(MAX_GENERATION)) or int(value) > MAX_GENERATION:
        raise Unavailable(
            f"etcd's key {GENERATION_KEY.decode()} holds no generation but {value[:40]!r}: keep others from writing "
            "under /tenure/, then delete the key; a new generation is settled by itself",
            reason=ETCD_UNREADABLE,
        )
    return int(value)
