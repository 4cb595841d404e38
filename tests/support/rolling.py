"""Restarts every process of a stack in turn, as a rolling upgrade does."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from devstack.child_process import StackError
from devstack.service_process import ServiceProcess
from devstack.stack import Stack

ORDER: Final = ("checkpoint", "tools", "models", "coordinator", "gateway", "worker")
"""The order of an upgrade: callees before their callers."""


class RestartedProcess(NamedTuple):
    """A process after its restart: the seconds from SIGTERM to its end, and from its start until it served."""

    service: ServiceProcess
    drain_seconds: float
    start_seconds: float


async def rolling_restart(stack: Stack) -> AsyncIterator[RestartedProcess]:
    """Restarts the replicas of each service one after another: SIGTERM, start, wait until it serves.

    Yields after each process, so that the caller may do something between two. Raises StackError for a process that
    does not end in order, and ServiceDied for one that does not serve again.
    """
    for kind in ORDER:
        for service in stack.workers if kind == "worker" else stack.replicas(kind):
            began = time.monotonic()
            code = await service.drain()
            if code != 0:
                raise StackError(
                    f"{service.name} ended with code {code} after SIGTERM instead of 0; its log is {service.log_path}"
                )
            ended = time.monotonic()
            service.start()
            await service.wait_ready()
            yield RestartedProcess(service, ended - began, time.monotonic() - ended)
