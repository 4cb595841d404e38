"""Makes, finds and deletes claim keys.

A claim is put once, under its session's lease; each deletion names its claim.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from services.coordinator.etcd.calls import EtcdUnclear, LeaseExpired
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.etcd.transactions import (
    Delete,
    Get,
    KeyValue,
    Put,
    Txn,
    TxnResult,
    absent,
    created_at,
    modified_at,
    under_lease,
    value_is,
)
from services.coordinator.lease_store.generation_key import write_generation
from services.coordinator.lease_store.records import (
    CLAIMS,
    GENERATION_KEY,
    ClaimRecord,
    HeldClaim,
    HeldSession,
    claim_key,
    read_claim,
    session_key,
    write_record,
)
from services.coordinator.lease_store.refusals import translated_errors
from tenure.domain.errors import Unavailable
from tenure.runtime.failpoints import failpoint

_log: Final = logging.getLogger(__name__)

MAX_BATCH: Final = 100
"""The claims in one request. etcd counts the nested list and the widest list inside it against 128."""
MAX_BATCH_BYTES: Final = 1024 * 1024
"""The bytes of records in one request: etcd refuses a larger request than 1.5 MiB as a whole."""


@dataclass(frozen=True, slots=True)
class NewClaim:
    """A claim to make for an attached session."""

    task_id: str
    record: ClaimRecord
    session: HeldSession


class ClaimRefusal(Enum):
    """The reason why a claim was not made."""

    TAKEN = auto()  # the task has a claim, see `holder`; None: the value of its key cannot be read
    SESSION_GONE = auto()  # the session ended, or is attached to another coordinator by now
    GENERATION = auto()  # etcd is at another generation
    UNCLEAR = auto()  # the outcome is unknown: the claim may still appear, so it is neither granted nor lost
    NOT_SENT = auto()  # etcd stopped answering before this claim was sent
    TOO_LARGE = auto()  # its record exceeds the maximum request: the claim can never be made


class ClaimResult(NamedTuple):
    """The result of a NewClaim: `held`, or the refusal."""

    wanted: NewClaim
    held: HeldClaim | None
    refusal: ClaimRefusal | None = None
    holder: HeldClaim | None = None


class ClaimKeys:
    """Makes, finds and deletes claims, many in one request."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd
        self._listed: dict[KeyValue, HeldClaim | None] = {}

    async def claim_many(self, wanted: Sequence[NewClaim]) -> list[ClaimResult]:
        """Makes claims, each on its own conditions: task unclaimed, attachment unchanged, generation unchanged.

        Returns one ClaimResult for each NewClaim, in order. After an unclear answer it reads the claims back by claim
        id: a claim that is there was made by this call; an absent one proves nothing, because it may appear later.
        Raises Unavailable when no claim was made. After etcd has answered for some claims, those without an answer are
        NOT_SENT.
        """
        assert len(wanted) <= MAX_BATCH, f"{len(wanted)} claims in one request"
        await failpoint("coordinator.before_claim")
        sized = [(each, len(write_record(each.record))) for each in wanted]
        results = await self._claim_in_turn(list(_batches([each for each in sized if each[1] <= MAX_BATCH_BYTES])))
        by_claim = {each.wanted.record.claim_id: each for each in results}
        return [
            by_claim.get(each.record.claim_id) or ClaimResult(each, None, ClaimRefusal.TOO_LARGE) for each in wanted
        ]

    async def _claim_in_turn(self, batches: Sequence[Sequence[NewClaim]]) -> list[ClaimResult]:
        results: list[ClaimResult] = []
        for number, batch in enumerate(batches):
            try:
                with translated_errors():
                    results += await self._claim_batch(batch)
            except Unavailable as error:
                if not results:
                    raise
                unsent_claims = [each for later in batches[number:] for each in later]
                _log.warning("claims were not made", extra={"claims": len(unsent_claims), "error": error})
                return [*results, *(ClaimResult(each, None, ClaimRefusal.NOT_SENT) for each in unsent_claims)]
        return results

    async def _claim_batch(self, batch: Sequence[NewClaim]) -> list[ClaimResult]:
        try:
            result = await self._etcd.txn(Txn(then=tuple(map(_claim_txn, batch))))
        except EtcdUnclear as error:
            _log.warning("claims are unclear and will be read back", extra={"claims": len(batch), "error": error})
            return await self._read_back(batch)
        except LeaseExpired:
            if len(batch) == 1:
                return [ClaimResult(batch[0], None, ClaimRefusal.SESSION_GONE)]
            # One dead lease fails the whole request, so each claim is then sent alone.
            return await self._claim_in_turn([[each] for each in batch])
        return [_claimed(each, nested) for each, nested in zip(batch, result.nested, strict=True)]

    async def delete_many(self, claims: Sequence[HeldClaim]) -> set[str]:
        """Deletes exactly these claims.

        Returns the claim ids that still existed. Raises Unavailable. A repeat is safe.
        """
        deleted: set[str] = set()
        for batch in chunks(claims, MAX_BATCH):
            with translated_errors():
                result = await self._etcd.txn(Txn(then=tuple(map(_delete_txn, batch))))
            deleted.update(
                claim.record.claim_id
                for claim, nested in zip(batch, result.nested, strict=True)
                if nested.succeeded and nested.results == (1,)
            )
        return deleted

    async def find_many(self, task_ids: Iterable[str]) -> dict[str, HeldClaim]:
        """Returns the claims of these tasks by task id, read linearizably. Raises Unavailable."""
        with translated_errors():
            key_values = await self._etcd.get_many(claim_key(task_id) for task_id in task_ids)
        return _by_task(key_values.values())

    async def list_all(self) -> dict[str, HeldClaim]:
        """Returns all claims at one revision by task id. Raises Unavailable."""
        with translated_errors():
            listing = await self._etcd.list(CLAIMS)
        # A claim never changes, so parsed ones are kept: parsing ten thousand again would delay renewals.
        before = self._listed
        self._listed = {each: before[each] if each in before else read_claim(each) for each in listing.key_values}
        return {claim.task_id: claim for claim in self._listed.values() if claim is not None}

    async def _read_back(self, wanted: Sequence[NewClaim]) -> list[ClaimResult]:
        try:
            claims = await self.find_many(each.task_id for each in wanted)
        except Unavailable:
            return [ClaimResult(each, None, ClaimRefusal.UNCLEAR) for each in wanted]
        return [_refused_by(each, claims.get(each.task_id)) for each in wanted]


def chunks(items: Sequence[HeldClaim], size: int) -> Iterator[Sequence[HeldClaim]]:
    """Yields the items in order, at most `size` at once."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _batches(sized: Iterable[tuple[NewClaim, int]]) -> Iterator[list[NewClaim]]:
    """Yields the claims in order, in batches of at most MAX_BATCH_BYTES."""
    batch: list[NewClaim] = []
    used = 0
    for each, size in sized:
        if batch and used + size > MAX_BATCH_BYTES:
            yield batch
            batch, used = [], 0
        batch.append(each)
        used += size
    if batch:
        yield batch


def _claim_txn(wanted: NewClaim) -> Txn:
    key, session = claim_key(wanted.task_id), session_key(wanted.session.session_id)
    return Txn(
        when=(
            absent(key),
            modified_at(session, wanted.session.mod_revision),
            value_is(GENERATION_KEY, write_generation(wanted.record.generation)),
        ),
        then=(Put(key, write_record(wanted.record), lease=wanted.session.lease),),
        otherwise=(Get(key), Get(GENERATION_KEY)),
    )


def _delete_txn(claim: HeldClaim) -> Txn:
    key = claim_key(claim.task_id)
    # A restored etcd gives revisions again: a deletion from its former life must not hit a newer claim.
    return Txn(when=(created_at(key, claim.create_revision), under_lease(key, claim.lease)), then=(Delete(key),))


def _claimed(wanted: NewClaim, result: TxnResult) -> ClaimResult:
    if result.succeeded:
        # The revision is the claim's only if this very transaction put the key: after a refusal it belongs to another
        # write.
        return ClaimResult(wanted, HeldClaim(wanted.task_id, wanted.record, result.revision, wanted.session.lease))
    by_key = {each.key: each for each in result.key_values}
    taken = by_key.get(claim_key(wanted.task_id))
    if taken is not None:  # also by a value that is not a claim: the session is not to blame, and has other claims
        return ClaimResult(wanted, None, ClaimRefusal.TAKEN, read_claim(taken))
    generation = by_key.get(GENERATION_KEY)
    if generation is None or generation.value != write_generation(wanted.record.generation):
        return ClaimResult(wanted, None, ClaimRefusal.GENERATION)
    return ClaimResult(wanted, None, ClaimRefusal.SESSION_GONE)


def _refused_by(wanted: NewClaim, claim: HeldClaim | None) -> ClaimResult:
    if claim is None:
        return ClaimResult(wanted, None, ClaimRefusal.UNCLEAR)
    if claim.record.claim_id == wanted.record.claim_id:
        return ClaimResult(wanted, claim)
    return ClaimResult(wanted, None, ClaimRefusal.TAKEN, claim)


def _by_task(key_values: Iterable[KeyValue]) -> dict[str, HeldClaim]:
    return {claim.task_id: claim for claim in map(read_claim, key_values) if claim is not None}
