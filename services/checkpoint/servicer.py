"""CheckpointService: each RPC calls the function that does the work. No rule is decided here."""

# ruff: noqa: ARG002 - names and parameters are the generated servicer's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from services.checkpoint import bills, epochs, lease_grants, lists, reads, repeats
from services.checkpoint.commit import external_entries, opening, refused_writes
from services.checkpoint.commit.commit_stream import CommitFrames
from services.checkpoint.commit.opener import LedgerOpener
from services.checkpoint.commit.prepared import PreparedCommit, prepare
from services.checkpoint.queue import depth, queue, requeue, stops
from services.checkpoint.queue.depth import QueueDepths
from services.checkpoint.queue.offering import Offering
from services.checkpoint.retention import clearing, pruning
from services.checkpoint.standby import LedgerReads
from services.checkpoint.submit import create, forking, undoing
from services.checkpoint.submit.creator import LedgerCreator
from services.checkpoint.task_defaults import TaskDefaults
from services.checkpoint.waits import call_plans, in_doubt, signals
from services.checkpoint.watch.announcement import Announcement
from services.checkpoint.watch.change_stream import ChangeStream
from services.checkpoint.watch.task_stream import EntryWatch
from tenure.domain.errors import StaleEpoch
from tenure.runtime.request_context import current_tenant
from tenure.runtime.store.batching import Answer, Batcher
from tenure.runtime.store.postgres import Pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import checkpoint_service_pb2_grpc
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.stops import selected, stop_to_domain, stop_to_wire
from tenure.wire.token import TokenChecker

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class LedgerDependencies:
    """The dependencies of the RPC methods."""

    pool: Pool
    reads: LedgerReads
    tokens: TokenChecker
    batcher: Batcher[PreparedCommit, pb.CommitResponse]
    creator: LedgerCreator
    opener: LedgerOpener
    watching: EntryWatch
    changes: ChangeStream
    refusals: refused_writes.Refusals
    announce: Callable[[Announcement], None]
    stopping: asyncio.Event
    defaults: TaskDefaults
    depths: QueueDepths


class CheckpointServicer(checkpoint_service_pb2_grpc.CheckpointServiceServicer):
    """See protos/tenure/v1/checkpoint_service.proto for what each method promises."""

    def __init__(self, ledger: LedgerDependencies, offering: Offering) -> None:
        self._ledger = ledger
        self._offering = offering

    async def CreateTask(self, request: pb.CreateTaskRequest, context: Context) -> pb.CreateTaskResponse:
        return pb.CreateTaskResponse(task=await self._ledger.creator.create(current_tenant(), request))

    async def ForkTask(self, request: tasks_pb.ForkTaskRequest, context: Context) -> tasks_pb.ForkTaskResponse:
        forked = await forking.fork_task(self._ledger.pool, current_tenant(), request, self._ledger.defaults)
        self._ledger.announce(forked.announcement)
        return tasks_pb.ForkTaskResponse(task=forked.task)

    async def PlanUndo(self, request: tasks_pb.PlanUndoRequest, context: Context) -> tasks_pb.PlanUndoResponse:
        return await undoing.plan(self._ledger.pool, current_tenant(), request)

    async def UndoTask(self, request: tasks_pb.UndoTaskRequest, context: Context) -> tasks_pb.UndoTaskResponse:
        created = await undoing.undo_task(self._ledger.pool, current_tenant(), request, self._ledger.defaults)
        self._ledger.announce(created.announcement)
        return tasks_pb.UndoTaskResponse(task=created.task)

    async def ListCallPlans(
        self, request: tasks_pb.ListCallPlansRequest, context: Context
    ) -> tasks_pb.ListCallPlansResponse:
        return await call_plans.list_call_plans(self._ledger.pool, current_tenant(), request)

    async def EndCallPlan(self, request: tasks_pb.EndCallPlanRequest, context: Context) -> tasks_pb.EndCallPlanResponse:
        return await call_plans.end_call_plan(self._ledger.pool, current_tenant(), request)

    async def PrepareFork(self, request: pb.PrepareForkRequest, context: Context) -> pb.PrepareForkResponse:
        return await forking.prepare_fork(self._ledger.pool, current_tenant(), request.fork, self._ledger.defaults)

    async def PrepareTask(self, request: pb.PrepareTaskRequest, context: Context) -> pb.PrepareTaskResponse:
        create_task = request.create_task
        return await create.prepare_task(self._ledger.pool, current_tenant(), create_task, self._ledger.defaults)

    async def FindRepeat(self, request: pb.FindRepeatRequest, context: Context) -> pb.FindRepeatResponse:
        return await repeats.find_repeat(self._ledger.pool, current_tenant(), request)

    async def Open(self, request: pb.OpenRequest, context: Context) -> AsyncIterator[pb.OpenResponse]:
        claims = self._ledger.tokens.check(request.token)
        try:
            opened = await self._ledger.opener.open(
                claims, joins_model_calls=request.joins_model_calls, after=request.after_sequence
            )
        except StaleEpoch as error:
            self._ledger.refusals.note("Open", claims.task_id, claims.tenant, claims.holder, error)
            raise
        yield pb.OpenResponse(header=opened.header)
        yield opened.first
        async for page in opening.history(self._ledger.pool, opened):
            yield page

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        return await self._ledger.batcher.submit(prepare(request, self._ledger.tokens, validated=True))

    async def CommitStream(
        self, request_iterator: AsyncIterator[pb.CommitStreamRequest], context: Context
    ) -> AsyncIterator[pb.CommitStreamResponse]:
        frames = CommitFrames(self._submit, self._ledger.stopping)
        async for frame in frames.answers(request_iterator):
            yield frame

    def _submit(self, request: pb.CommitRequest, answer: Answer[pb.CommitResponse]) -> int:
        commit = prepare(request, self._ledger.tokens, validated=False)
        self._ledger.batcher.enqueue(commit, answer)
        return commit.size_bytes

    async def GetTask(self, request: tasks_pb.GetTaskRequest, context: Context) -> tasks_pb.GetTaskResponse:
        task = await reads.get_task(self._ledger.pool, current_tenant(), request.task_id)
        return tasks_pb.GetTaskResponse(task=task)

    async def ListTasks(self, request: tasks_pb.ListTasksRequest, context: Context) -> tasks_pb.ListTasksResponse:
        return await lists.list_tasks(self._ledger.reads, current_tenant(), request)

    async def CountTasks(self, request: tasks_pb.CountTasksRequest, context: Context) -> tasks_pb.CountTasksResponse:
        return await lists.count_tasks(self._ledger.pool, current_tenant(), request)

    async def GroupTasks(self, request: pb.GroupTasksRequest, context: Context) -> pb.GroupTasksResponse:
        return await lists.group_tasks(self._ledger.pool, current_tenant(), request)

    async def ListTaskEntries(
        self, request: tasks_pb.ListTaskEntriesRequest, context: Context
    ) -> tasks_pb.ListTaskEntriesResponse:
        return await reads.list_entries(self._ledger.reads, current_tenant(), request)

    async def WatchEntries(
        self, request: pb.WatchEntriesRequest, context: Context
    ) -> AsyncIterator[pb.WatchEntriesResponse]:
        watching = self._ledger.watching
        follow = watching.closing if request.closing_only else watching.entries
        async for some in follow(current_tenant(), request.task_id, request.after_sequence):
            yield some

    async def WatchChanges(
        self, request: pb.WatchChangesRequest, context: Context
    ) -> AsyncIterator[pb.WatchChangesResponse]:
        watched = self._ledger.changes.changes(current_tenant(), request.filter, request.after_cursor)
        async for some in watched:
            yield some

    async def ListClaimable(self, request: pb.ListClaimableRequest, context: Context) -> pb.ListClaimableResponse:
        return pb.ListClaimableResponse(offers=await queue.list_claimable(self._ledger.pool, self._offering, request))

    async def ListQueues(self, request: admin_pb.ListQueuesRequest, context: Context) -> admin_pb.ListQueuesResponse:
        return admin_pb.ListQueuesResponse(queues=await self._ledger.depths.listed())

    async def WatchQueue(self, request: pb.WatchQueueRequest, context: Context) -> AsyncIterator[pb.WatchQueueResponse]:
        async for response in self._ledger.watching.queue():
            yield response

    async def RegisterGrants(self, request: pb.RegisterGrantsRequest, context: Context) -> pb.RegisterGrantsResponse:
        return pb.RegisterGrantsResponse(claim_ids=await queue.register_grants(self._ledger.pool, request.grants))

    async def BeginStop(self, request: admin_pb.BeginStopRequest, context: Context) -> admin_pb.BeginStopResponse:
        begun = await stops.begin_stop(self._ledger.pool, selected(request))
        return admin_pb.BeginStopResponse(stop=stop_to_wire(begun))

    async def EndStop(self, request: admin_pb.EndStopRequest, context: Context) -> admin_pb.EndStopResponse:
        ended = await stops.end_stop(self._ledger.pool, selected(request))
        return admin_pb.EndStopResponse(stop=stop_to_wire(ended))

    async def ListStops(self, request: admin_pb.ListStopsRequest, context: Context) -> admin_pb.ListStopsResponse:
        return await stops.list_stops(self._ledger.pool, request)

    async def ListStoppedTasks(
        self, request: pb.ListStoppedTasksRequest, context: Context
    ) -> pb.ListStoppedTasksResponse:
        return await stops.list_stopped_tasks(self._ledger.pool, stop_to_domain(request.stop))

    async def RequeueLost(self, request: pb.RequeueLostRequest, context: Context) -> pb.RequeueLostResponse:
        task_ids, announcement = await requeue.requeue_lost(self._ledger.pool, request.lost)
        self._ledger.announce(announcement)
        return pb.RequeueLostResponse(task_ids=task_ids)

    async def InspectClaims(self, request: pb.InspectClaimsRequest, context: Context) -> pb.InspectClaimsResponse:
        return pb.InspectClaimsResponse(verdicts=await queue.inspect_claims(self._ledger.pool, request.claims))

    async def ListAging(self, request: pb.ListAgingRequest, context: Context) -> pb.ListAgingResponse:
        return await depth.list_aging(self._ledger.pool, current_tenant(), request)

    async def ListRunning(self, request: pb.ListRunningRequest, context: Context) -> pb.ListRunningResponse:
        return pb.ListRunningResponse(running=await queue.list_running(self._ledger.pool, request))

    async def ListEndings(self, request: pb.ListEndingsRequest, context: Context) -> pb.ListEndingsResponse:
        return pb.ListEndingsResponse(endings=await queue.list_endings(self._ledger.pool, request))

    async def AppendForeign(self, request: pb.AppendForeignRequest, context: Context) -> pb.AppendForeignResponse:
        appended = await external_entries.append_external_entry(self._ledger.pool, current_tenant(), request)
        self._ledger.announce(appended.announcement)
        return pb.AppendForeignResponse(task=appended.task, wait_has_begun=appended.wait_has_begun)

    async def SendSignal(self, request: pb.SendSignalRequest, context: Context) -> pb.SendSignalResponse:
        sent = await signals.send_signal(self._ledger.pool, current_tenant(), request)
        self._ledger.announce(sent.announcement)
        return pb.SendSignalResponse(task=sent.task)

    async def GetEpochs(self, request: pb.GetEpochsRequest, context: Context) -> pb.GetEpochsResponse:
        generation, highest_epoch = await epochs.get_epochs(self._ledger.pool)
        return pb.GetEpochsResponse(generation=generation, highest_epoch=highest_epoch)

    async def RaiseGeneration(self, request: pb.RaiseGenerationRequest, context: Context) -> pb.RaiseGenerationResponse:
        generation = await epochs.raise_generation(self._ledger.pool, request.expected, request.reason)
        return pb.RaiseGenerationResponse(generation=generation)

    async def GetLeaseGrant(self, request: pb.GetLeaseGrantRequest, context: Context) -> pb.GetLeaseGrantResponse:
        return await lease_grants.get_lease_grant(self._ledger.pool, current_tenant(), request.resource)

    async def RegisterLease(self, request: pb.RegisterLeaseRequest, context: Context) -> pb.RegisterLeaseResponse:
        return await lease_grants.register_lease(self._ledger.pool, current_tenant(), request.grant)

    async def NoteLeaseRelease(
        self, request: pb.NoteLeaseReleaseRequest, context: Context
    ) -> pb.NoteLeaseReleaseResponse:
        await lease_grants.record_lease_release(self._ledger.pool, current_tenant(), request)
        return pb.NoteLeaseReleaseResponse()

    async def InspectLeases(self, request: pb.InspectLeasesRequest, context: Context) -> pb.InspectLeasesResponse:
        registered = await lease_grants.inspect_leases(self._ledger.pool, request.claims)
        return pb.InspectLeasesResponse(registered_claim_ids=registered)

    async def ListBills(self, request: admin_pb.ListBillsRequest, context: Context) -> admin_pb.ListBillsResponse:
        return await bills.list_bills(self._ledger.pool, current_tenant(), request)

    async def ReportUsage(self, request: pb.ReportUsageRequest, context: Context) -> pb.ReportUsageResponse:
        claims = self._ledger.tokens.check(request.token)
        await bills.report_usage(self._ledger.pool, claims, request)
        return pb.ReportUsageResponse()

    async def InspectModelCalls(
        self, request: pb.InspectModelCallsRequest, context: Context
    ) -> pb.InspectModelCallsResponse:
        return pb.InspectModelCallsResponse(verdicts=await bills.inspect_calls(self._ledger.pool, request.calls))

    async def ListRefusedWrites(
        self, request: pb.ListRefusedWritesRequest, context: Context
    ) -> pb.ListRefusedWritesResponse:
        refused = await refused_writes.list_refusals(self._ledger.pool, current_tenant(), request.task_id)
        return pb.ListRefusedWritesResponse(refused_writes=refused)

    async def PruneTasks(self, request: admin_pb.PruneTasksRequest, context: Context) -> admin_pb.PruneTasksResponse:
        return await pruning.prune_for_operator(self._ledger.pool, current_tenant(), request)

    async def ListPrunings(self, request: pb.ListPruningsRequest, context: Context) -> pb.ListPruningsResponse:
        return pb.ListPruningsResponse(prunings=await clearing.list_prunings(self._ledger.pool, request.limit))

    async def NoteForgotten(self, request: pb.NoteForgottenRequest, context: Context) -> pb.NoteForgottenResponse:
        await clearing.record_forgotten(self._ledger.pool, request.task_ids)
        return pb.NoteForgottenResponse()

    async def ListDoubtWaits(self, request: pb.ListDoubtWaitsRequest, context: Context) -> pb.ListDoubtWaitsResponse:
        return pb.ListDoubtWaitsResponse(waits=await in_doubt.list_in_doubt_waits(self._ledger.pool, request.limit))

    async def ListDoubts(self, request: pb.ListDoubtsRequest, context: Context) -> pb.ListDoubtsResponse:
        return await in_doubt.list_calls_in_doubt(self._ledger.pool, current_tenant(), request)

    async def RequeueSettled(self, request: pb.RequeueSettledRequest, context: Context) -> pb.RequeueSettledResponse:
        task_ids, announcement = await in_doubt.requeue_settled(self._ledger.pool, request.settled)
        self._ledger.announce(announcement)
        return pb.RequeueSettledResponse(task_ids=task_ids)
