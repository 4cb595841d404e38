"""Epochs: the numbers inside fencing tokens.

    epoch = generation * 2^40 + create_revision of the claim's key in etcd

One int64, strictly growing per task. The generation counts the lives of etcd: a restored or replaced etcd goes back in
revisions, so the generation is raised before it grants again. 2^40 revisions last 34 years at 1,000 writes a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Final, NamedTuple

from tenure.domain.errors import PermissionDenied

REVISION_BITS: Final = 40
FIRST_GENERATION: Final = 1
"""The generation of a new ledger. No etcd works in it: the first one is given the next."""
MAX_REVISION: Final = (1 << REVISION_BITS) - 1
MAX_GENERATION: Final = (1 << (63 - REVISION_BITS)) - 1
MAX_GENERATION_JUMP: Final = 1 << 16
"""How far one raise may go. Each lost etcd needs one generation, and docs/etcd.md adds 1,000 after a lost ledger: a
raise beyond this follows a broken key in etcd, and few such raises would use up all generations.
"""


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


# What a fencing token says. Signing and checking: tenure/runtime/signing.py.

TASK_PREFIX = "tasks/"
LEASE_PREFIX = "leases/"


@dataclass(frozen=True, slots=True)
class Claims:
    """A claim as its token states it. `tools` None: all of the tenant's. No expiry: the fences decide."""

    resource: str
    tenant: str
    epoch: int
    claim_id: str
    holder: str
    tools: tuple[str, ...] | None = None

    @property
    def fence(self) -> Fence:
        """What guards compare."""
        return Fence(self.epoch, self.claim_id)

    @property
    def task_id(self) -> str:
        """The task; PermissionDenied when the token is for something else."""
        if not self.resource.startswith(TASK_PREFIX):
            raise PermissionDenied(f"a token for {self.resource!r} opens no task", reason="WRONG_RESOURCE")
        return self.resource.removeprefix(TASK_PREFIX)

    @property
    def lease_name(self) -> str:
        """The named resource; PermissionDenied when the token is for something else, such as a task."""
        if not self.resource.startswith(LEASE_PREFIX):
            raise PermissionDenied(f"a token for {self.resource!r} holds no lease", reason="WRONG_RESOURCE")
        return self.resource.removeprefix(LEASE_PREFIX)

    def allows_tool(self, name: str) -> bool:
        """Whether the task may call this tool."""
        return self.tools is None or name in self.tools


# Leases of named resources: how one comes after another.


@unique
class LeaseReason(StrEnum):
    """How the lease before this one ended; what the next holder is told."""

    FIRST = "FIRST"  # nobody ever held the resource
    RELEASED = "RELEASED"  # by its holder
    OPERATOR_RELEASED = "OPERATOR_RELEASED"
    LEASE_EXPIRED = "LEASE_EXPIRED"  # its holder did not renew, or etcd was restored
    TRANSFERRED = "TRANSFERRED"  # by its holder
    OPERATOR_TRANSFER = "OPERATOR_TRANSFER"


# The trust window: until when a worker may start something new without hearing from a coordinator.

DEFAULT_MARGIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """`sent_at`: when the last answered renewal was SENT. Counting from its answer would trust the network's delay."""

    sent_at: float
    ttl_seconds: float
    margin_seconds: float = DEFAULT_MARGIN_SECONDS

    @property
    def ends_at(self) -> float:
        return self.sent_at + self.ttl_seconds - self.margin_seconds

    def is_open(self, now: float) -> bool:
        """Whether something new may be started."""
        return now < self.ends_at

    def renewed(self, sent_at: float) -> TrustWindow:
        """The window after the answer to a renewal that was sent at `sent_at`; never shorter than before."""
        return TrustWindow(max(self.sent_at, sent_at), self.ttl_seconds, self.margin_seconds)
