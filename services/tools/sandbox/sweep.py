"""Removing what service processes left behind when they died."""

from __future__ import annotations

import asyncio
import logging

from services.tools.sandbox.detection import Detection
from services.tools.sandbox.placement import remove_orphaned_stages
from services.tools.sandbox.process import remove_cgroup

log = logging.getLogger(__name__)


async def sweep(detection: Detection) -> int:
    """Kill and remove what service processes of this pid namespace left behind when they died; how many things."""
    swept = await asyncio.to_thread(remove_orphaned_stages)
    for orphan in detection.cgroups.orphans():
        if await remove_cgroup(orphan):
            swept += 1
        else:
            log.error("a dead instance's cgroup cannot be removed: %s", orphan.join_files[0])
    if swept:
        log.warning("removed %d leftovers of a sandbox whose service died", swept)
    return swept
