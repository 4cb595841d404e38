"""ScheduleService on the wire, as far as the ledger serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.checkpoint.schedules import store
from services.checkpoint.schedules.updating import update_schedule
from tenure.runtime.tenancy import current_tenant
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceServicer

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.checkpoint.announcement import Announcement
    from services.checkpoint.task_defaults import TaskDefaults
    from tenure.runtime.postgres import Pool


class ScheduleServicer(ScheduleServiceServicer):
    """See protos/tenure/v1/schedule_service.proto for what each method promises."""

    def __init__(
        self,
        pool: Pool,
        announce: Callable[[Announcement], None],
        most_schedules: int,
        defaults: TaskDefaults,
    ) -> None:
        self._pool, self._announce, self._most_schedules = pool, announce, most_schedules
        self._defaults = defaults

    async def CreateSchedule(self, request: pb.CreateScheduleRequest, _context: Any) -> pb.CreateScheduleResponse:
        created = await store.create_schedule(self._pool, current_tenant(), request, self._most_schedules)
        return pb.CreateScheduleResponse(schedule=created)

    async def GetSchedule(self, request: pb.GetScheduleRequest, _context: Any) -> pb.GetScheduleResponse:
        return await store.get_schedule(self._pool, current_tenant(), request)

    async def ListSchedules(self, request: pb.ListSchedulesRequest, _context: Any) -> pb.ListSchedulesResponse:
        return await store.list_schedules(self._pool, current_tenant(), request)

    async def UpdateSchedule(self, request: pb.UpdateScheduleRequest, _context: Any) -> pb.UpdateScheduleResponse:
        updated = await update_schedule(self._pool, current_tenant(), request, self._defaults)
        self._announce(updated.announcement)
        return pb.UpdateScheduleResponse(schedule=updated.schedule)

    async def PauseSchedule(self, request: pb.PauseScheduleRequest, _context: Any) -> pb.PauseScheduleResponse:
        return pb.PauseScheduleResponse(schedule=await store.pause_schedule(self._pool, current_tenant(), request))

    async def ResumeSchedule(self, request: pb.ResumeScheduleRequest, _context: Any) -> pb.ResumeScheduleResponse:
        resumed = await store.resume_schedule(self._pool, current_tenant(), request.schedule)
        return pb.ResumeScheduleResponse(schedule=resumed)

    async def TriggerSchedule(self, request: pb.TriggerScheduleRequest, _context: Any) -> pb.TriggerScheduleResponse:
        created = await store.trigger_schedule(self._pool, current_tenant(), request, self._defaults)
        self._announce(created.announcement)
        return pb.TriggerScheduleResponse(task=created.task)

    async def DeleteSchedule(self, request: pb.DeleteScheduleRequest, _context: Any) -> pb.DeleteScheduleResponse:
        deleted = await store.delete_schedule(self._pool, current_tenant(), request.schedule)
        return pb.DeleteScheduleResponse(deleted=deleted)
