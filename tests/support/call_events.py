"""The events of a run, for tests that read them one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from services.tools.calls.following import EventQueue
from services.tools.calls.runs import Event, RunningCall


def events_of(run: RunningCall, *, joined: bool) -> AsyncGenerator[Event, None]:
    """Follows the run from now on."""
    queue = EventQueue()
    run.follow(queue, joined=joined)
    return queue.events()
