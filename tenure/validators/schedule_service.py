"""Checks the requests of ScheduleService, at the checkpoint service and at the gateway."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.schedules import check_cron, read_zone
from tenure.v1 import schedule_service_pb2 as schedules
from tenure.v1 import task_pb2
from tenure.validators.common import Check, check_no_id
from tenure.validators.rules import Violations
from tenure.validators.task import check_spec
from tenure.wire.common import seconds

_MIN_CATCH_UP_SECONDS: Final = 60
_MAX_CATCH_UP_SECONDS: Final = 31 * 24 * 3600
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_MAX_CRON_CHARACTERS: Final = 200


def _create(request: schedules.CreateScheduleRequest, v: Violations) -> None:
    check_no_id("name", request.name, v)
    _spec(request.spec, v)
    _cron(request.cron, v)
    _common_fields(request, v)


def _update(request: schedules.UpdateScheduleRequest, v: Violations) -> None:
    if request.HasField("spec"):
        _spec(request.spec, v)
    if request.HasField("cron"):
        _cron(request.cron, v)
    for name in ("start_time", "end_time"):
        both = request.HasField(name) and getattr(request, f"clear_{name}")
        v.require(not both, f"clear_{name}", f"must not be set together with {name}")
    _common_fields(request, v)


def _spec(spec: task_pb2.TaskSpec, v: Violations) -> None:
    check_spec(spec, v)
    for field, is_given in (("source", spec.HasField("source")), ("start_time", spec.HasField("start_time"))):
        v.require(not is_given, f"spec.{field}", "must not be set: the schedule sets it")


def _common_fields(request: Any, v: Violations) -> None:
    """Checks the fields that create and update requests share."""
    try:
        read_zone(request.time_zone or "UTC")
    except ValueError as error:
        v.require(holds=False, field="time_zone", description=str(error))
    if request.HasField("catch_up_window"):
        v.between("catch_up_window", seconds(request.catch_up_window), _MIN_CATCH_UP_SECONDS, _MAX_CATCH_UP_SECONDS)
    _bounds(request, v)


def _cron(cron: str, v: Violations) -> None:
    if len(cron) > _MAX_CRON_CHARACTERS:
        return
    try:
        check_cron(cron)
    except ValueError as error:
        v.require(holds=False, field="cron", description=str(error))


def _bounds(request: Any, v: Violations) -> None:
    given = [name for name in ("start_time", "end_time") if request.HasField(name)]
    fit = [name for name in given if _is_in_range(getattr(request, name))]
    for name in set(given) - set(fit):
        v.require(holds=False, field=name, description=f"must be between {_FIRST.year} and {_LAST.year}")
    if len(fit) == 2:
        in_order = request.start_time.ToNanoseconds() <= request.end_time.ToNanoseconds()
        v.require(in_order, "end_time", "must not be before start_time")


def _is_in_range(moment: Timestamp) -> bool:
    return _FIRST.timestamp() <= moment.seconds <= _LAST.timestamp()


CHECKS: Final[dict[type, Check]] = {
    schedules.CreateScheduleRequest: _create,
    schedules.UpdateScheduleRequest: _update,
}
