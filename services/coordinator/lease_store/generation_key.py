"""Reads and moves the generation key.

Every claim and session is made on the condition that the generation is unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import Compare, absent, value_is
from services.coordinator.lease_store.records import GENERATION_KEY
from services.coordinator.lease_store.refusals import ETCD_UNREADABLE, translated_errors
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import MAX_GENERATION


class EtcdGeneration(NamedTuple):
    """etcd's generation and revision at one moment. The generation is None when the key was never set."""

    generation: int | None
    revision: int


class GenerationKey:
    """Reads and moves the generation key."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    async def read(self, *, timeout_seconds: float | None = None) -> EtcdGeneration:
        """Returns etcd's generation, read linearizably. Raises Unavailable, also when the key has no valid value."""
        with translated_errors():
            held, revision = await self._etcd.get_with_revision(GENERATION_KEY, timeout_seconds=timeout_seconds)
        return EtcdGeneration(None if held is None else read_generation(held.value, self._etcd.namespace), revision)

    async def move(self, expected: int | None, target: int) -> bool:
        """Moves the key by compare-and-set.

        Returns whether this call moved it. Raises Unavailable, also when that is unknown.
        """
        held = absent(GENERATION_KEY) if expected is None else _is(expected)
        with translated_errors():
            put = await self._etcd.put(GENERATION_KEY, write_generation(target), only_if=(held,))
        return put.succeeded


def _is(generation: int) -> Compare:
    return value_is(GENERATION_KEY, write_generation(generation))


def write_generation(generation: int) -> bytes:
    return str(generation).encode()


def read_generation(value: bytes, prefix: bytes) -> int:
    """`prefix`: of the installation's keys.

    Raises Unavailable when the key has another value: a guessed generation would be unsafe.
    """
    if not value.isdigit() or len(value) > len(str(MAX_GENERATION)) or int(value) > MAX_GENERATION:
        raise Unavailable(
            f"etcd's key {(prefix + GENERATION_KEY).decode()} has no generation but {value[:40]!r}: keep other "
            f"programs from writing under {prefix.decode()}, then delete the key; the coordinators then settle a new "
            "generation",
            reason=ETCD_UNREADABLE,
        )
    return int(value)
