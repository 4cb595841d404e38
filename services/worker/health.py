"""Says in the worker's gRPC health whether a coordinator has taken it in: without one it works on nothing new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Never

from tenure.runtime import metrics
from tenure.runtime.process import rest
from tenure.runtime.rpc_server import Health

_log: Final = logging.getLogger(__name__)
SERVICE: Final = "tenure.v1.WorkerService"
UNATTACHED_SECONDS: Final = 5.0
"""For so long a worker may be on its way to another coordinator, and still counts as serving."""

_LOOK_SECONDS: Final = 0.5


class AttachmentHealth:
    """The duty `run` looks, because it has to notice most of all when whoever should report is stuck."""

    def __init__(
        self, health: Health, is_attached: Callable[[], bool], patience_seconds: float = UNATTACHED_SECONDS
    ) -> None:
        self._health, self._is_attached, self._patience_seconds = health, is_attached, patience_seconds
        self._serving = True

    async def run(self) -> Never:
        """NOT_SERVING after `patience_seconds` without an attachment, SERVING as soon as there is one."""
        clock = asyncio.get_running_loop().time
        attached_at = clock()
        while True:
            if self._is_attached():
                attached_at = clock()
            await self._say(serving=clock() - attached_at < self._patience_seconds)
            await rest(_LOOK_SECONDS)

    async def _say(self, *, serving: bool) -> None:
        if serving == self._serving:
            return
        self._serving = serving
        metrics.gauge("tenure_worker_attached", float(serving))
        for service in ("", SERVICE):
            await self._health.set_serving(service, serving)
        if serving:
            _log.info("serving: a coordinator has taken this worker in")
        else:
            _log.warning("not serving: no coordinator has taken this worker in", extra={"for": self._patience_seconds})
