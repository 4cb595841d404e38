"""Defines epochs, fences, the claims of a fencing token, and a worker's trust window.

    epoch = generation * 2^40 + create_revision of the claim's key in etcd

An epoch is one int64 and strictly grows per task. The generation counts the lives of etcd: the revisions of a restored
or replaced etcd go back, so the generation is raised before that etcd grants a claim again. 2^40 revisions last 34
years at 1,000 writes a second.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from enum import StrEnum, unique
from hashlib import sha256
from typing import Final, NamedTuple

from tenure.domain.effect_keys import TaskScopes
from tenure.domain.errors import PermissionDenied
from tenure.domain.tools import PlannedCalls

REVISION_BITS: Final = 40
FIRST_GENERATION: Final = 1
"""The generation of a new ledger. No etcd ever works in this generation: the first etcd gets the next one."""
MAX_REVISION: Final = (1 << REVISION_BITS) - 1
MAX_GENERATION: Final = (1 << (63 - REVISION_BITS)) - 1
MAX_GENERATION_JUMP: Final = 1 << 16
"""How far one raise may go. Each lost etcd needs one generation, and docs/restore.md adds 1,000 after a lost ledger: a
raise beyond this follows a broken key in etcd, and few such raises would use up all generations.
"""


class Fence(NamedTuple):
    """The pair that a fence compares.

    Two claims with equal epochs have different fences: a restored etcd may issue a revision twice.
    """

    epoch: int
    claim_id: str


def compose_epoch(generation: int, revision: int) -> int:
    """Returns the epoch of a claim made at `revision` in etcd's `generation`.

    Raises ValueError if either is out of range, so that an epoch always fits an int64.
    """
    if not 0 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation {generation} is outside 0..{MAX_GENERATION}")
    if not 1 <= revision <= MAX_REVISION:
        raise ValueError(f"revision {revision} is outside 1..{MAX_REVISION}")
    return (generation << REVISION_BITS) | revision


def split_epoch(epoch: int) -> tuple[int, int]:
    """Returns (generation, revision) of an epoch, for display and for comparison with etcd."""
    return epoch >> REVISION_BITS, epoch & MAX_REVISION


def is_claim_epoch(epoch: int) -> bool:
    """Returns whether a claim can have this epoch. The ledger's generations and etcd's revisions both begin at 1."""
    generation, revision = split_epoch(epoch)
    return 1 <= generation <= MAX_GENERATION and revision >= 1


def describe_epoch(epoch: int) -> str:
    """Returns `generation.revision` for logs and displays, or `-` for epoch 0 (none)."""
    generation, revision = split_epoch(epoch)
    return f"{generation}.{revision}" if epoch else "-"


# The claims of a fencing token. tenure/runtime/security/signing.py signs and verifies the token.

TASK_PREFIX = "tasks/"
LEASE_PREFIX = "leases/"


@unique
class Audience(StrEnum):
    """The services that accept a token. No service of Tenure accepts a token for PROVIDER."""

    CHECKPOINT = "CHECKPOINT"
    TOOLS = "TOOLS"
    PROVIDER = "PROVIDER"
    LEASE = "LEASE"  # LeaseService, and the resource that a named lease guards
    MODELS = "MODELS"


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a fencing token. `tools` None: all tools of the tenant. A token does not expire: fences decide.

    `agent`, `queue`: those of the task at its grant, which stops select; `labels`: of the task.
    `audiences`: the services that accept the token; None for an audience that only a newer release knows. `scopes`: the
    groups of the task; None: the token does not say. `approvals`: its open calls that a person has approved, each as
    `<call_id>:<digest>`. `plans`: those of its tree that are in force.
    """

    resource: str
    tenant: str
    epoch: int
    claim_id: str
    holder: str
    tools: tuple[str, ...] | None = None
    audiences: tuple[Audience | None, ...] = ()
    installation: str = ""
    agent: str = ""
    queue: str = ""
    scopes: TaskScopes | None = None
    labels: tuple[tuple[str, str], ...] = ()
    approvals: tuple[str, ...] = ()
    plans: tuple[PlannedCalls, ...] = ()

    @property
    def fence(self) -> Fence:
        """The pair that a fence compares."""
        return Fence(self.epoch, self.claim_id)

    def without_task(self, audiences: tuple[Audience | None, ...]) -> Claims:
        """Returns the claim itself for these audiences, without what the tool service decides calls by."""
        return Claims(
            self.resource,
            self.tenant,
            self.epoch,
            self.claim_id,
            self.holder,
            audiences=audiences,
            installation=self.installation,
        )

    @property
    def task_id(self) -> str:
        """The task id. Raises PermissionDenied (WRONG_RESOURCE) if the token's resource is not a task."""
        if not self.resource.startswith(TASK_PREFIX):
            message = f"a token for {self.resource!r} is not a task's token"
            raise PermissionDenied(message, reason="WRONG_RESOURCE", metadata=self._subject())
        return self.resource.removeprefix(TASK_PREFIX)

    @property
    def lease_name(self) -> str:
        """The name of the lease. Raises PermissionDenied (WRONG_RESOURCE) if the token's resource is not a lease."""
        if not self.resource.startswith(LEASE_PREFIX):
            message = f"a token for {self.resource!r} is not a lease's token"
            raise PermissionDenied(message, reason="WRONG_RESOURCE", metadata=self._subject())
        return self.resource.removeprefix(LEASE_PREFIX)

    def check_audience(self, audience: Audience, installation: str) -> None:
        """Raises PermissionDenied (WRONG_AUDIENCE) unless the token is for this service of this installation."""
        if audience not in self.audiences:
            names = ", ".join(one or "a service of a newer release" for one in self.audiences) or "no service"
            message = f"the fencing token is for {names}, not for {audience}"
            raise PermissionDenied(message, reason="WRONG_AUDIENCE", metadata=self._subject())
        if self.installation != installation:
            message = f"the fencing token is of the installation {self.installation!r}, this one is {installation!r}"
            raise PermissionDenied(message, reason="WRONG_AUDIENCE", metadata=self._subject())

    def _subject(self) -> dict[str, str]:
        """Returns what a refusal of the token is recorded with."""
        return {"resource": self.resource, "holder": self.holder}

    def allows_tool(self, name: str) -> bool:
        """Returns whether the task may call this tool."""
        return self.tools is None or name in self.tools


# Named leases.


@unique
class LeaseReason(StrEnum):
    """The end of the previous lease of the name. The next holder gets this reason with its lease."""

    FIRST = "FIRST"  # there was no previous lease
    RELEASED = "RELEASED"  # the holder released it
    OPERATOR_RELEASED = "OPERATOR_RELEASED"
    LEASE_EXPIRED = "LEASE_EXPIRED"  # the holder did not renew, or etcd was restored
    TRANSFERRED = "TRANSFERRED"  # the holder transferred it
    OPERATOR_TRANSFER = "OPERATOR_TRANSFER"


# The trust window: how long a worker may begin something new without an answered renewal.

DEFAULT_MARGIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """The time in which a process may begin something new without a renewal. Times are in seconds of a local clock.

    `sent_at` is when the process SENT the last answered renewal. A window that began at the answer would be too long
    by the network's delay.
    """

    sent_at: float
    ttl_seconds: float
    margin_seconds: float = DEFAULT_MARGIN_SECONDS

    @property
    def ends_at(self) -> float:
        return self.sent_at + self.ttl_seconds - self.margin_seconds

    def is_open(self, now: float) -> bool:
        """Returns whether the worker may begin something new."""
        return now < self.ends_at

    def renewed(self, sent_at: float) -> TrustWindow:
        """Returns the window after an answered renewal sent at `sent_at`. It never ends earlier than this one."""
        return TrustWindow(max(self.sent_at, sent_at), self.ttl_seconds, self.margin_seconds)


# Binds a session to the worker that opened it.
#
# A session is opened under an identity (of the worker's certificate) and with a secret (of the worker's process). To
# attach it again, a process needs both. The coordinator keeps digests, so a reader of etcd learns no secret. The proof
# that a worker shows to gateways is a digest of the secret too: a gateway cannot attach the session with it.

MIN_BYTES: Final = 32
MAX_BYTES: Final = 64
_SESSION: Final = b"tenure session"
_LIVE_TEXT: Final = b"tenure live text"


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """The owner of a session, as etcd has it.

    `identity`: the SPIFFE ID, "" without TLS. `secret_digest`: hexadecimal.
    """

    identity: str
    secret_digest: str

    def check(self, caller: SessionOwner) -> None:
        """Raises PermissionDenied (OTHER_HOLDER) unless the caller is this owner.

        A session that was opened without TLS can be attached with TLS: its secret decides.
        """
        is_same_identity = self.identity in {"", caller.identity}
        is_same_secret = hmac.compare_digest(self.secret_digest, caller.secret_digest)
        if not (is_same_identity and is_same_secret):
            differs = "with another secret" if is_same_identity else f"by {self.identity}"
            raise PermissionDenied(
                f"the session was opened {differs}; attach without session_id to open a session of your own",
                reason="OTHER_HOLDER",
            )


def secret_digest(secret: bytes) -> str:
    """Returns the digest that the coordinator keeps of a secret."""
    return sha256(_SESSION + secret).hexdigest()


def holder_proof(secret: bytes) -> bytes:
    """Returns the proof with which the worker of a session begins its live text."""
    return sha256(_LIVE_TEXT + secret).digest()


def proof_digest(secret: bytes) -> str:
    """Returns the digest of the proof, by which gateways recognise it."""
    return sha256(holder_proof(secret)).hexdigest()


def is_proof(presented: bytes, digest: bytes) -> bool:
    """Whether the digest is that of the presented proof."""
    return hmac.compare_digest(sha256(presented).digest(), digest)
