"""The client's calls about schedules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tenure.v1 import schedule_service_pb2 as pb

if TYPE_CHECKING:  # these exist for type checkers only
    from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceAsyncStub

_PAGE: Final = 500


class ScheduleCalls:
    """A part of Client, which has the stub and the patience."""

    schedules: ScheduleServiceAsyncStub
    _patiently: Callable[..., Awaitable[Any]]

    async def create_schedule(self, request: pb.CreateScheduleRequest) -> pb.Schedule:
        """A schedule; the same request again gives the same one. Raises AlreadyExists (SCHEDULE_EXISTS)."""
        answer: pb.CreateScheduleResponse = await self._patiently(self.schedules.CreateSchedule, request)
        return answer.schedule

    async def update_schedule(self, request: pb.UpdateScheduleRequest) -> pb.Schedule:
        """The schedule as asked; what is absent stays. Raises WrongState (SCHEDULE_CHANGED) at another revision."""
        answer: pb.UpdateScheduleResponse = await self._patiently(self.schedules.UpdateSchedule, request)
        return answer.schedule

    async def get_schedule(self, schedule: str, run_count: int = 0) -> pb.GetScheduleResponse:
        """A schedule by id or name, and what became of its newest due times."""
        asked = pb.GetScheduleRequest(schedule=schedule, run_count=run_count)
        answer: pb.GetScheduleResponse = await self._patiently(self.schedules.GetSchedule, asked)
        return answer

    async def list_schedules(self) -> AsyncGenerator[pb.Schedule]:
        """All of them, by name."""
        asked = pb.ListSchedulesRequest(page_size=_PAGE)
        while True:
            page: pb.ListSchedulesResponse = await self._patiently(self.schedules.ListSchedules, asked)
            for schedule in page.schedules:
                yield schedule
            asked.page_token = page.next_page_token
            if not page.next_page_token:
                return
