"""ScheduleService handed through to the ledger. Every call may be repeated: a trigger gets its id here."""

from __future__ import annotations

from typing import Any

from services.gateway.peers import Peers, patiently
from services.gateway.tasks import caller, new_id
from services.gateway.tool_names import check_tool_names
from tenure.v1 import schedule_service_pb2 as pb
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceServicer


class ScheduleServicer(ScheduleServiceServicer):
    """Adds patience with replicas that restart, and who asks."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def CreateSchedule(self, request: pb.CreateScheduleRequest, _context: Any) -> pb.CreateScheduleResponse:
        await check_tool_names(self._peers, request.spec.agent, "spec.")
        return await patiently(lambda: self._peers.schedules.CreateSchedule(request))

    async def GetSchedule(self, request: pb.GetScheduleRequest, _context: Any) -> pb.GetScheduleResponse:
        return await patiently(lambda: self._peers.schedules.GetSchedule(request))

    async def ListSchedules(self, request: pb.ListSchedulesRequest, _context: Any) -> pb.ListSchedulesResponse:
        return await patiently(lambda: self._peers.schedules.ListSchedules(request))

    async def UpdateSchedule(self, request: pb.UpdateScheduleRequest, _context: Any) -> pb.UpdateScheduleResponse:
        """A repeat behind this call finds the schedule as asked. A new spec is checked as that of a new schedule."""
        await check_tool_names(self._peers, request.spec.agent, "spec.")
        return await patiently(lambda: self._peers.schedules.UpdateSchedule(request))

    async def PauseSchedule(self, request: pb.PauseScheduleRequest, _context: Any) -> pb.PauseScheduleResponse:
        asked = pb.PauseScheduleRequest(schedule=request.schedule, reason=request.reason, actor=caller())
        return await patiently(lambda: self._peers.schedules.PauseSchedule(asked))

    async def ResumeSchedule(self, request: pb.ResumeScheduleRequest, _context: Any) -> pb.ResumeScheduleResponse:
        return await patiently(lambda: self._peers.schedules.ResumeSchedule(request))

    async def TriggerSchedule(self, request: pb.TriggerScheduleRequest, _context: Any) -> pb.TriggerScheduleResponse:
        asked = pb.TriggerScheduleRequest(schedule=request.schedule, request_id=request.request_id or new_id())
        return await patiently(lambda: self._peers.schedules.TriggerSchedule(asked))

    async def DeleteSchedule(self, request: pb.DeleteScheduleRequest, _context: Any) -> pb.DeleteScheduleResponse:
        """A repeat behind this call may find that the first one did it."""
        return await patiently(lambda: self._peers.schedules.DeleteSchedule(request))
