"""Claim keys. A claim is made once, under its session's lease, and every deletion names the one it means."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from services.coordinator.etcd.calls import EtcdUnclear, LeaseExpired
from services.coordinator.etcd.transactions import (
    Delete,
    Get,
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
from services.coordinator.lease_store.refusals import asking_etcd
from tenure.domain.errors import Unavailable
from tenure.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from services.coordinator.etcd.client import EtcdClient
    from services.coordinator.etcd.transactions import KeyValue

_log: Final = logging.getLogger(__name__)

MAX_BATCH: Final = 100
"""Claims in one request. etcd counts the nested list and the widest list inside it against 128."""
MAX_BATCH_BYTES: Final = 1024 * 1024
"""Records in one request: etcd refuses a request of more than 1.5 MiB as a whole."""


@dataclass(frozen=True, slots=True)
class NewClaim:
    """A claim to be made for an attached session."""

    task_id: str
    record: ClaimRecord
    session: HeldSession


class ClaimRefusal(Enum):
    """Why a claim was not made."""

    TAKEN = auto()  # the task has a claim, see `holder`
    SESSION_GONE = auto()  # the session ended, or is attached elsewhere by now
    GENERATION = auto()  # etcd is at another generation
    UNCLEAR = auto()  # nobody knows: it may still appear, so it is neither granted nor lost
    NOT_SENT = auto()  # etcd stopped answering before this claim's turn
    TOO_LARGE = auto()  # its record fits into no request: never to be made


class ClaimResult(NamedTuple):
    """What became of a NewClaim: `held`, or why not."""

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
        """Each claim on its own conditions: task unclaimed, session attached as it was, generation unchanged.

        The result has one Claimed for each NewClaim, in order. An unclear answer is read back by claim_id: a claim that
        is there is ours; an absent one proves nothing, it may land later. Raises Unavailable when nothing was done.
        After etcd has answered for some, those it did not answer for are NOT_SENT.
        """
        assert len(wanted) <= MAX_BATCH, f"{len(wanted)} claims in one request"
        await failpoint("coordinator.before_claim")
        sized = [(each, len(write_record(each.record))) for each in wanted]
        made = await self._claim_in_turn(list(_batches([each for each in sized if each[1] <= MAX_BATCH_BYTES])))
        by_claim = {each.wanted.record.claim_id: each for each in made}
        return [
            by_claim.get(each.record.claim_id) or ClaimResult(each, None, ClaimRefusal.TOO_LARGE) for each in wanted
        ]

    async def _claim_in_turn(self, batches: Sequence[Sequence[NewClaim]]) -> list[ClaimResult]:
        made: list[ClaimResult] = []
        for number, batch in enumerate(batches):
            try:
                with asking_etcd():
                    made += await self._claim_batch(batch)
            except Unavailable as error:
                if not made:
                    raise
                left = [each for later in batches[number:] for each in later]
                _log.warning("claims were not made", extra={"claims": len(left), "error": error})
                return [*made, *(ClaimResult(each, None, ClaimRefusal.NOT_SENT) for each in left)]
        return made

    async def _claim_batch(self, batch: Sequence[NewClaim]) -> list[ClaimResult]:
        try:
            result = await self._etcd.txn(Txn(then=tuple(map(_claim_txn, batch))))
        except EtcdUnclear as error:
            _log.warning("claims are unclear and will be read back", extra={"claims": len(batch), "error": error})
            return await self._read_back(batch)
        except LeaseExpired:
            if len(batch) == 1:
                return [ClaimResult(batch[0], None, ClaimRefusal.SESSION_GONE)]
            # One dead lease fails the request as a whole, its neighbours too: then each goes alone.
            return await self._claim_in_turn([[each] for each in batch])
        return [_claimed(each, nested) for each, nested in zip(batch, result.nested, strict=True)]

    async def delete_many(self, claims: Sequence[HeldClaim]) -> set[str]:
        """Delete exactly these claims; the claim_ids that were still there. Raises Unavailable; repeatable."""
        deleted: set[str] = set()
        for batch in chunks(claims, MAX_BATCH):
            with asking_etcd():
                result = await self._etcd.txn(Txn(then=tuple(map(_delete_txn, batch))))
            deleted.update(
                claim.record.claim_id
                for claim, nested in zip(batch, result.nested, strict=True)
                if nested.succeeded and nested.results == (1,)
            )
        return deleted

    async def find_many(self, task_ids: Iterable[str]) -> dict[str, HeldClaim]:
        """The claims of these tasks, by task, read linearizably. Raises Unavailable."""
        with asking_etcd():
            key_values = await self._etcd.get_many(claim_key(task_id) for task_id in task_ids)
        return _by_task(key_values.values())

    async def list_all(self) -> dict[str, HeldClaim]:
        """All claims at one revision, by task. Raises Unavailable."""
        with asking_etcd():
            listing = await self._etcd.list(CLAIMS)
        # Claims never change, so most are those of the last time: reading ten thousand anew holds up renewals.
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
    """The items in order, at most `size` at once."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _batches(sized: Iterable[tuple[NewClaim, int]]) -> Iterator[list[NewClaim]]:
    """The claims in order, in batches of at most MAX_BATCH_BYTES."""
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
    # A restored etcd gives revisions again: what was seen of its former life must not hit a claim made since.
    return Txn(when=(created_at(key, claim.create_revision), under_lease(key, claim.lease)), then=(Delete(key),))


def _claimed(wanted: NewClaim, result: TxnResult) -> ClaimResult:
    if result.succeeded:
        # The revision of the very transaction that put the key: after a refusal it would be somebody else's.
        return ClaimResult(wanted, HeldClaim(wanted.task_id, wanted.record, result.revision, wanted.session.lease))
    by_key = {each.key: each for each in result.key_values}
    holder = _holder(by_key.get(claim_key(wanted.task_id)))
    if holder is not None:
        return ClaimResult(wanted, None, ClaimRefusal.TAKEN, holder)
    generation = by_key.get(GENERATION_KEY)
    if generation is None or generation.value != write_generation(wanted.record.generation):
        return ClaimResult(wanted, None, ClaimRefusal.GENERATION)
    return ClaimResult(wanted, None, ClaimRefusal.SESSION_GONE)


def _holder(key_value: KeyValue | None) -> HeldClaim | None:
    return None if key_value is None else read_claim(key_value)


def _refused_by(wanted: NewClaim, claim: HeldClaim | None) -> ClaimResult:
    if claim is None:
        return ClaimResult(wanted, None, ClaimRefusal.UNCLEAR)
    if claim.record.claim_id == wanted.record.claim_id:
        return ClaimResult(wanted, claim)
    return ClaimResult(wanted, None, ClaimRefusal.TAKEN, claim)


def _by_task(key_values: Iterable[KeyValue]) -> dict[str, HeldClaim]:
    return {claim.task_id: claim for claim in map(read_claim, key_values) if claim is not None}
