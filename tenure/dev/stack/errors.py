"""What keeps the stack from running, said in one sentence."""

from __future__ import annotations


class StackError(RuntimeError):
    """The stack cannot run, or a part of it died; the message says why and what to do. Notes carry the log's end."""


class ServiceDied(StackError):  # noqa: N818  what happened, as it is told
    """A process ended before it served, or did not serve in time."""


class FolderBusy(StackError):  # noqa: N818  what happened, as it is told
    """Another stack runs on this folder."""
