"""The audit log: a record of each administrative act and of refusals, and the hash chain over the records.

The chain shows a record that was changed, inserted or deleted behind the service's back, except at the end of the log:
for that, compare a hash that was noted elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Final

from tenure.domain.access import Role
from tenure.domain.errors import PermissionDenied, TenureError, Unauthenticated

NO_HASH: Final = bytes(32)
"""The hash before the first record."""
MAX_NAME: Final = 300
"""Characters of a tenant, a subject, a peer, a method and a recorder."""
MAX_TARGET: Final = 1000
MAX_REASON: Final = 1000
MAX_APPENDED: Final = 500
"""The most records of one append."""
SAMPLE_SECONDS: Final = 60.0
"""Equal refusals within this time become one record."""
MAX_KINDS: Final = 200
"""The most kinds of refusals that are counted separately within `SAMPLE_SECONDS`."""
_HEAD: Final = re.compile(r"(?P<number>[1-9][0-9]{0,18}):(?P<hash>[0-9a-f]{64})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Decision(StrEnum):
    """The decision about a call."""

    ALLOWED = "ALLOWED"
    DENIED = "DENIED"


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One call, or `count` equal refusals. See protos/tenure/v1/audit_service.proto.

    `recorder`: the process that recorded it, as the ledger knows it from its certificate; "": not known.
    """

    record_id: str
    tenant: str
    subject: str
    peer: str
    method: str
    target: str
    decision: Decision
    reason: str
    count: int = 1
    recorder: str = ""


def is_denial(error: TenureError) -> bool:
    """Returns whether the error says that the caller may not make the call: such a refusal is recorded."""
    return isinstance(error, (Unauthenticated, PermissionDenied))


def check_recorder(role: Role | None, records: Iterable[AuditRecord]) -> None:
    """Raises PermissionDenied unless a process of this role may append these records. None: no authentication.

    Only gateways carry out administrative acts for clients; all other processes have only refusals to record.
    """
    if role in {None, Role.GATEWAY}:
        return
    if any(record.decision is not Decision.DENIED for record in records):
        raise PermissionDenied(
            f"a {str(role).lower()} records refused calls only; a gateway records admitted ones",
            reason="METHOD_NOT_ALLOWED",
        )


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """A record in the log. `number`: from 1, without gaps."""

    number: int
    recorded_at: datetime
    record: AuditRecord
    hash: bytes


def chain_hash(previous: bytes, number: int, recorded_at: datetime, record: AuditRecord) -> bytes:
    """Returns the hash of a record: SHA-256 over the hash before, and each field after its length (4 bytes).

    A record without a recorder has no such field.
    """
    microseconds = (recorded_at - _EPOCH) // timedelta(microseconds=1)
    fields = (
        str(number),
        str(microseconds),
        record.record_id,
        record.tenant,
        record.subject,
        record.peer,
        record.method,
        record.target,
        record.decision.value,
        record.reason,
        str(record.count),
        *([record.recorder] if record.recorder else []),
    )
    digest = sha256(previous)
    for text in fields:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Head:
    """The position and the hash of a record: what to note elsewhere, and to compare later."""

    number: int = 0
    hash: bytes = NO_HASH

    @classmethod
    def parse(cls, text: str) -> Head:
        """Returns the head of a text like "17:9f3c…". Raises ValueError."""
        match = _HEAD.fullmatch(text)
        if match is None:
            raise ValueError("a head is a number from 1 and a hash of 64 hexadecimal digits, with a colon between them")
        return cls(int(match["number"]), bytes.fromhex(match["hash"]))

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"


class BrokenChainError(Exception):
    """The log was changed. `number`: the first record that does not follow from the one before."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(problem)
        self.number = number


async def verify_chain(records: AsyncIterable[ChainedRecord], noted: Head | None = None) -> Head:
    """Returns the head of all records, the oldest first. Raises BrokenChainError.

    `noted`: a head from before, which the log must still have.
    """
    head = Head()
    async for one in records:
        if one.number != head.number + 1:
            raise BrokenChainError(
                head.number + 1, f"record {head.number + 1} is missing: {one.number} follows {head.number}"
            )
        expected = chain_hash(head.hash, one.number, one.recorded_at, one.record)
        if one.hash != expected:
            raise BrokenChainError(one.number, f"record {one.number} does not follow from the records before it")
        head = Head(one.number, one.hash)
        if noted is not None and head.number == noted.number and head != noted:
            raise BrokenChainError(one.number, f"record {one.number} has another hash than the one that was noted")
    if noted is not None and head.number < noted.number:
        raise BrokenChainError(
            head.number + 1, f"the log ends with record {head.number}, before the one that was noted"
        )
    return head


_Kind = tuple[str, str, str, str]


@dataclass(slots=True)
class Denials:
    """Counts equal refusals, so that a caller who is refused a thousand times a second is one record a minute."""

    _taken_seconds: dict[_Kind, float] = field(default_factory=dict)
    _waiting: dict[_Kind, AuditRecord] = field(default_factory=dict)

    def add(self, record: AuditRecord) -> None:
        """Adds a refusal. Beyond `MAX_KINDS` kinds, it counts among those of its method and reason."""
        kind = (record.tenant, record.subject, record.method, record.reason)
        is_new = kind not in self._waiting and kind not in self._taken_seconds
        if is_new and len(self._waiting.keys() | self._taken_seconds.keys()) >= MAX_KINDS:
            kind = ("", "", record.method, record.reason)
        before = self._waiting.get(kind)
        count = record.count + (0 if before is None else before.count)
        self._waiting[kind] = replace(record, tenant=kind[0], subject=kind[1], count=count)

    def take(self, now_seconds: float) -> list[AuditRecord]:
        """Removes and returns what is due: the first refusal of a kind at once, those that follow after a minute."""
        recent = {kind: taken for kind, taken in self._taken_seconds.items() if now_seconds - taken < SAMPLE_SECONDS}
        due = [kind for kind in self._waiting if kind not in recent]
        self._taken_seconds = {**recent, **dict.fromkeys(due, now_seconds)}
        return [self._waiting.pop(kind) for kind in due]

    def give_back(self, records: Iterable[AuditRecord]) -> None:
        """Makes records due again that were taken but not written."""
        for record in records:
            self.add(record)
        self._taken_seconds = {}
