"""The checkpoint service with its edges: the program of `tenure serve checkpoint`."""

from __future__ import annotations

from edges.notifications.notifier import PeopleNotifier
from services.checkpoint import main as checkpoint


def main() -> int:
    """Runs the checkpoint service and returns its exit code."""
    return checkpoint.main(PeopleNotifier)
