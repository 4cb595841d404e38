"""The coordinator's client of the checkpoint service. Every call has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, Final

from services.coordinator.lease_store import HeldClaim
from services.coordinator.lease_store.named_leases import NamedLease
from services.coordinator.sessions.session import WorkerProfile
from tenure.domain.audit import AuditRecord
from tenure.domain.entries import Entry
from tenure.domain.fairness import Slots
from tenure.domain.stops import StopsInForce
from tenure.runtime.rpc.client import TenureChannel
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, token_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1.audit_service_pb2_grpc import AuditServiceStub
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.audit import append_request
from tenure.wire.common import duration
from tenure.wire.coordinator_service import lower_tiers
from tenure.wire.ledger import OpenedTask, read_entries_to_end
from tenure.wire.opened import LONG_OPENS, OPEN_SECONDS, OpenStream
from tenure.wire.stops import in_force_of, stop_to_wire

MAX_CLAIMS: Final = 512
_TIMEOUT_SECONDS: Final = 5.0
_PAGE: Final = 1000
# The queue watch opens a new stream every quarter of an hour, so that each call has a deadline.
WATCH_SECONDS: Final = 900.0


class LedgerClient:
    """Raises the checkpoint service's domain errors, and Unavailable when it does not answer."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub = CheckpointServiceStub(channel)
        self._long_opens = asyncio.Semaphore(LONG_OPENS)

    async def list_claimable(
        self, profile: WorkerProfile, slots: Slots, worker_ids: Collection[str], *, without_suspects: bool
    ) -> Sequence[pb.Offer]:
        """Returns offers for these workers. No other coordinator gets the same offers in the next second."""
        request = pb.ListClaimableRequest(
            queues=profile.queues,
            priorities=profile.priorities,
            loops=profile.loops,
            limit=slots.any,
            lower_tiers=lower_tiers(slots),
            without_suspects=without_suspects,
            worker_ids=worker_ids,
            tenants=sorted(profile.tenants or ()),
        )
        return (await self._stub.ListClaimable(request, timeout=_TIMEOUT_SECONDS)).offers

    async def register(self, claims: Sequence[HeldClaim]) -> set[str]:
        """Registers claims and returns the claim ids that the ledger accepted as grants."""
        grants = [
            pb.RegisterGrantsRequest.Grant(task_id=each.task_id, epoch=each.epoch, claim_id=each.record.claim_id)
            for each in claims
        ]
        response = await self._stub.RegisterGrants(pb.RegisterGrantsRequest(grants=grants), timeout=_TIMEOUT_SECONDS)
        return set(response.claim_ids)

    async def requeue(self, lost: Sequence[pb.RequeueLostRequest.Lost]) -> Sequence[str]:
        """Requeues tasks that run under exactly these claims, at most MAX_CLAIMS. Returns the requeued task ids."""
        return (await self._stub.RequeueLost(pb.RequeueLostRequest(lost=lost), timeout=_TIMEOUT_SECONDS)).task_ids

    async def inspect(self, claims: Sequence[HeldClaim]) -> Sequence[pb.InspectClaimsResponse.Verdict]:
        """Returns the ledger's view of each of these claims, in their order; at most MAX_CLAIMS."""
        named_claims = [
            pb.InspectClaimsRequest.Claim(task_id=each.task_id, claim_id=each.record.claim_id) for each in claims
        ]
        return (
            await self._stub.InspectClaims(pb.InspectClaimsRequest(claims=named_claims), timeout=_TIMEOUT_SECONDS)
        ).verdicts

    async def list_running(self) -> list[pb.ListRunningResponse.Running]:
        """Returns all running tasks, read in pages."""
        running: list[pb.ListRunningResponse.Running] = []
        while True:
            after = running[-1].task_id if running else ""
            request = pb.ListRunningRequest(page_size=_PAGE, after_task_id=after)
            page = (await self._stub.ListRunning(request, timeout=_TIMEOUT_SECONDS)).running
            running.extend(page)
            if len(page) < _PAGE:
                return running

    async def list_endings(self, limit: int, grace_seconds: float) -> Sequence[pb.ListEndingsResponse.Ending]:
        """Returns pending endings that a coordinator must carry out now."""
        request = pb.ListEndingsRequest(limit=limit, grace=duration(grace_seconds))
        return (await self._stub.ListEndings(request, timeout=_TIMEOUT_SECONDS)).endings

    async def list_prunings(self, limit: int) -> Sequence[pb.ListPruningsResponse.Pruning]:
        """Returns pruned tasks for the tool service to forget. Other coordinators do not get them for a while."""
        request = pb.ListPruningsRequest(limit=limit)
        return (await self._stub.ListPrunings(request, timeout=_TIMEOUT_SECONDS)).prunings

    async def note_forgotten(self, task_ids: Sequence[str]) -> None:
        """Records that the tool service has forgotten these tasks."""
        await self._stub.NoteForgotten(pb.NoteForgottenRequest(task_ids=task_ids), timeout=_TIMEOUT_SECONDS)

    async def list_doubt_waits(self, limit: int) -> Sequence[pb.ListDoubtWaitsResponse.DoubtWait]:
        """Returns tasks that wait for a resolution. Other coordinators do not get them for a while."""
        request = pb.ListDoubtWaitsRequest(limit=limit)
        return (await self._stub.ListDoubtWaits(request, timeout=_TIMEOUT_SECONDS)).waits

    async def requeue_settled(self, waits: Sequence[pb.ListDoubtWaitsResponse.DoubtWait]) -> Sequence[str]:
        """Requeues tasks whose calls are settled. Returns those that were still in the same wait."""
        settled = [pb.RequeueSettledRequest.Settled(task_id=one.task_id, epoch=one.epoch) for one in waits]
        request = pb.RequeueSettledRequest(settled=settled)
        return (await self._stub.RequeueSettled(request, timeout=_TIMEOUT_SECONDS)).task_ids

    async def list_stops(self, applied: StopsInForce | None = None) -> StopsInForce:
        """Returns the stops in force. `applied`: those of the tool service, if the ledger lost them: it takes them."""
        request = admin_pb.ListStopsRequest()
        if applied is not None:
            request.applied_epoch = applied.epoch
            request.applied.extend(map(stop_to_wire, applied.stops))
        return in_force_of(await self._stub.ListStops(request, timeout=_TIMEOUT_SECONDS))

    async def watch_queue(self) -> AsyncGenerator[pb.WatchQueueResponse, None]:
        """Yields the messages of the queue watch until the stream ends."""
        async for event in self._stub.WatchQueue(pb.WatchQueueRequest(), timeout=WATCH_SECONDS):
            yield event

    async def entries(self, task_id: str, kinds: Sequence[str]) -> AsyncGenerator[ledger_pb2.Entry, None]:
        """Yields the entries of these kinds of a task of the request's tenant, oldest first. Raises NotFound."""
        request = tasks_pb.ListTaskEntriesRequest(task_id=task_id, kinds=kinds, page_size=_PAGE)
        more = True
        while more:
            page = await self._stub.ListTaskEntries(request, timeout=_TIMEOUT_SECONDS)
            for entry in page.entries:
                yield entry
                request.after_sequence = entry.sequence
            more = page.more and bool(page.entries)

    async def get_epochs(self) -> pb.GetEpochsResponse:
        """Returns the ledger's generation and its highest registered epoch."""
        return await self._stub.GetEpochs(pb.GetEpochsRequest(), timeout=_TIMEOUT_SECONDS)

    async def raise_generation(self, expected: int, reason: str) -> int:
        """Raises the generation by compare-and-set. Returns the current one, also when another replica raised it."""
        request = pb.RaiseGenerationRequest(expected=expected, reason=reason)
        return (await self._stub.RaiseGeneration(request, timeout=_TIMEOUT_SECONDS)).generation

    async def open(self, token: token_pb2.FencingToken) -> OpenedTask:
        """Opens a task and returns the part of its history that a close-out needs."""
        entries: list[Entry] = []

        def start(after: int) -> Any:
            return self._stub.Open(pb.OpenRequest(token=token, after_sequence=after), timeout=OPEN_SECONDS)

        def take(page: Sequence[ledger_pb2.Entry]) -> None:
            entries.extend(read_entries_to_end(page))

        header = await OpenStream(start, take, self._long_opens).read()
        return OpenedTask(header.task, header.next_commit_number, entries)

    async def commit(self, request: pb.CommitRequest) -> pb.CommitResponse:
        """Commits entries. A repeat with the same request is safe."""
        return await self._stub.Commit(request, timeout=_TIMEOUT_SECONDS)


class AuditClient:
    """Appends records to the audit log. Raises the checkpoint service's domain errors, and Unavailable."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub = AuditServiceStub(channel)

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """Appends records of refusals. A repeat is safe."""
        await self._stub.AppendAuditRecords(append_request(records), timeout=_TIMEOUT_SECONDS)


# The LeaseService's client of the checkpoint service. The tenant is that of the current request.

MAX_INSPECTED: Final = 512


class LeaseGrantClient:
    """Raises the checkpoint service's domain errors, and Unavailable when it does not answer."""

    def __init__(self, channel: TenureChannel) -> None:
        self._stub = CheckpointServiceStub(channel)

    async def last_grant(self, resource: str) -> pb.GetLeaseGrantResponse:
        """Returns the resource's last grant and its release; epoch 0 when the resource was never held."""
        request = pb.GetLeaseGrantRequest(resource=resource)
        return await self._stub.GetLeaseGrant(request, timeout=_TIMEOUT_SECONDS)

    async def register(self, held: NamedLease) -> pb.RegisterLeaseResponse:
        """Registers a lease's claim. The answer says whether it may get a token. A repeat is safe."""
        record = held.record
        grant = pb.LeaseGrant(
            resource=held.resource,
            epoch=held.epoch,
            claim_id=record.claim_id,
            holder=record.holder,
            previous_epoch=record.previous_epoch,
            request_id=record.request_id,
            reason=record.reason,
            message=record.message,
        )
        return await self._stub.RegisterLease(pb.RegisterLeaseRequest(grant=grant), timeout=_TIMEOUT_SECONDS)

    async def note_release(self, held: NamedLease, reason: str, message: str) -> None:
        """Records the reason of a release that is about to happen. A repeat is safe."""
        request = pb.NoteLeaseReleaseRequest(
            resource=held.resource, claim_id=held.record.claim_id, reason=reason, message=message
        )
        await self._stub.NoteLeaseRelease(request, timeout=_TIMEOUT_SECONDS)

    async def registered(self, leases: Sequence[NamedLease]) -> set[str]:
        """Returns the registered ones of these claims, which may be of any tenants; at most MAX_INSPECTED."""
        claims = [
            pb.InspectLeasesRequest.Claim(tenant=each.tenant, resource=each.resource, claim_id=each.record.claim_id)
            for each in leases
        ]
        response = await self._stub.InspectLeases(pb.InspectLeasesRequest(claims=claims), timeout=_TIMEOUT_SECONDS)
        return set(response.registered_claim_ids)
