"""Epochs: the numbers inside fencing tokens.

    epoch = generation * 2^40 + create_revision of the claim's key in etcd

One int64, strictly growing per task. The generation counts the lives of etcd: a restored or replaced etcd goes back in
revisions, so the generation is raised before it grants again. 2^40 revisions last 34 years at 1,000 writes a second.
"""

from __future__ import annotations

from typing import Final, NamedTuple

REVISION_BITS: Final = 40
FIRST_GENERATION: Final = 1
"""The generation of a new ledger. No etcd works in it: the first one is given the next."""
MAX_REVISION: Final = (1 << REVISION_BITS) - 1
MAX_GENERATION: Final = (1 << (63 - REVISION_BITS)) - 1


class Fence(NamedTuple):
    """What a guard compares. Equal epochs of different claims differ: a restored etcd may give a number twice."""

    epoch: int
    claim_id: str


def compose_epoch(generation: int, revision: int) -> int:
    """The epoch of a claim made at `revision` in etcd's `generation`; ValueError outside of the int64."""
    if not 0 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation {generation} is outside 0..{MAX_GENERATION}")
    if not 1 <= revision <= MAX_REVISION:
        raise ValueError(f"revision {revision} is outside 1..{MAX_REVISION}")
    return (generation << REVISION_BITS) | revision


def split_epoch(epoch: int) -> tuple[int, int]:
    """(generation, revision) of an epoch, for people and for comparing with etcd."""
    return epoch >> REVISION_BITS, epoch & MAX_REVISION


def is_claim_epoch(epoch: int) -> bool:
    """Whether a claim can have this epoch: the ledger's generations and etcd's revisions both begin at 1."""
    generation, revision = split_epoch(epoch)
    return 1 <= generation <= MAX_GENERATION and revision >= 1


def describe_epoch(epoch: int) -> str:
    """`generation.revision`, as shown in logs and on screens; `-` for none."""
    generation, revision = split_epoch(epoch)
    return f"{generation}.{revision}" if epoch else "-"
