"""Shifts the clocks of a Python process by what stands in a file, while it runs; put on PYTHONPATH by tests.

The file named by TEST_CLOCK_FILE holds two doubles: seconds that the wall clock is ahead, seconds that the monotonic
one is. Only Python sees it. gRPC computes a deadline from time.time() for its core, which has its own, true clock: it
gets the true time, as both would be shifted by the same amount on a machine whose clock is wrong.
"""

from __future__ import annotations

import datetime  # noqa: ICN001  its name is what is replaced
import mmap
import os
import struct
import sys
import time
from functools import partial
from typing import Any

_OFFSETS = struct.Struct("dd")
_UNSHIFTED = ("grpc", "grpc.aio._utils")


def _install(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123  pathlib is not to be imported before the clocks are shifted
        memory = mmap.mmap(file.fileno(), _OFFSETS.size, prot=mmap.PROT_READ)

    def ahead(clock: int) -> float:
        value: float = _OFFSETS.unpack_from(memory)[clock]
        return value

    wall, monotonic = partial(ahead, 0), partial(ahead, 1)
    _shift_time(wall, monotonic)
    _shift_datetime(wall)


def _shift_time(wall: Any, monotonic: Any) -> None:
    true_time, true_time_ns = time.time, time.time_ns
    true_monotonic, true_monotonic_ns = time.monotonic, time.monotonic_ns
    true_gettime, true_gettime_ns = time.clock_gettime, time.clock_gettime_ns
    ahead = {time.CLOCK_REALTIME: wall, time.CLOCK_MONOTONIC: monotonic}
    if sys.platform == "linux":
        ahead[time.CLOCK_BOOTTIME] = monotonic

    def shifted_time() -> float:
        told_the_truth = sys._getframe(1).f_globals.get("__name__") in _UNSHIFTED
        return true_time() + (0.0 if told_the_truth else wall())

    def of_a_moment(function: Any) -> Any:
        return lambda seconds=None: function(shifted_time() if seconds is None else seconds)

    time.time = shifted_time
    time.time_ns = lambda: true_time_ns() + int(wall() * 1e9)
    time.monotonic = lambda: true_monotonic() + monotonic()
    time.monotonic_ns = lambda: true_monotonic_ns() + int(monotonic() * 1e9)
    time.clock_gettime = lambda clock: true_gettime(clock) + ahead.get(clock, float)()
    time.clock_gettime_ns = lambda clock: true_gettime_ns(clock) + int(ahead.get(clock, float)() * 1e9)
    time.gmtime, time.localtime = of_a_moment(time.gmtime), of_a_moment(time.localtime)
    time.ctime = of_a_moment(time.ctime)


def _shift_datetime(wall: Any) -> None:
    true: Any = datetime.datetime

    class AnyDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, true)

    class Datetime(true, metaclass=AnyDatetime):  # type: ignore[misc]  # a class of before the clock is shifted
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(true.now(datetime.UTC).timestamp() + wall(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    setattr(datetime, "datetime", Datetime)  # noqa: B010  a type cannot be assigned to


if "TEST_CLOCK_FILE" in os.environ:
    _install(os.environ["TEST_CLOCK_FILE"])
