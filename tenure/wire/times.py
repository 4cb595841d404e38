"""Durations and timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp


def duration(seconds: float) -> Duration:
    """Seconds as a Duration."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def seconds(message: Duration) -> float:
    """A Duration in seconds."""
    return message.seconds + message.nanos / 1e9


def timestamp(moment: datetime) -> Timestamp:
    """A moment with a time zone as a Timestamp."""
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def optional_timestamp(moment: datetime | None) -> Timestamp | None:
    """The same of what may not have happened."""
    return None if moment is None else timestamp(moment)


def unix_seconds(message: Timestamp) -> float:
    """A Timestamp in seconds since 1970."""
    return message.seconds + message.nanos / 1e9


def moment(message: Timestamp) -> datetime:
    """A Timestamp as a moment in UTC."""
    return message.ToDatetime(tzinfo=UTC)
