"""Reports NOT_SERVING in the gRPC health while the worker is not attached: it starts nothing new without a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Never

from tenure.runtime.observability import metrics
from tenure.runtime.process import rest
from tenure.runtime.rpc.server import Health

_log: Final = logging.getLogger(__name__)
SERVICE: Final = "tenure.v1.WorkerService"
UNATTACHED_SECONDS: Final = 5.0
"""The time that an unattached worker still counts as serving, so that it can attach to another coordinator."""

_LOOK_SECONDS: Final = 0.5


class AttachmentHealth:
    """Polls the attachment in the duty `run`: a stuck session could not report its own state."""

    def __init__(
        self, health: Health, is_attached: Callable[[], bool], patience_seconds: float = UNATTACHED_SECONDS
    ) -> None:
        self._health, self._is_attached, self._patience_seconds = health, is_attached, patience_seconds
        self._serving = True

    async def run(self) -> Never:
        """Sets NOT_SERVING after `patience_seconds` without an attachment, and SERVING as soon as there is one."""
        clock = asyncio.get_running_loop().time
        attached_at = clock()
        metrics.gauge("tenure_worker_attached", float(self._serving))
        while True:
            if self._is_attached():
                attached_at = clock()
            await self._report(serving=clock() - attached_at < self._patience_seconds)
            await rest(_LOOK_SECONDS)

    async def _report(self, *, serving: bool) -> None:
        if serving == self._serving:
            return
        self._serving = serving
        metrics.gauge("tenure_worker_attached", float(serving))
        for service in ("", SERVICE):
            await self._health.set_serving(service, serving)
        if serving:
            _log.info("serving: the worker is attached to a coordinator")
        else:
            _log.warning(
                "not serving: the worker is not attached to a coordinator", extra={"for": self._patience_seconds}
            )
