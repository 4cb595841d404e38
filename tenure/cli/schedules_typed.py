"""Schedules as they are typed: moments in a zone, and what a task of one is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import click
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.times import timestamp

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])


def spec_of(request: api.SubmitTaskRequest) -> task_pb2.TaskSpec:
    """What the two have in common has the same names. The source is the schedule's."""
    request.ClearField("source")
    spec = task_pb2.TaskSpec()
    for field, value in request.ListFields():
        if field.name == "labels":
            spec.labels.update(value)
        elif field.message_type is not None:
            getattr(spec, field.name).CopyFrom(value)
        else:
            setattr(spec, field.name, value)
    return spec


def timestamp_in(zone: str, told: datetime | None) -> Timestamp | None:
    """What a clock of that zone shows. BadParameter for a zone that is none."""
    if told is None:
        return None
    try:
        return timestamp(told.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC))
    except (LookupError, ValueError, OSError):
        raise click.BadParameter(f"{zone} is no IANA time zone", param_hint="--zone") from None
