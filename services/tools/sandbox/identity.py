"""The name under which a service process leaves things on the machine, and whether that process is still alive.

Names carry the pid namespace, the pid and the process's start time: a later process that happens to get the same pid
is not mistaken for the owner, and a replica in another container is never judged by pids it does not share.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from services.tools.sandbox.procfs import start_ticks

PREFIX = "tenure-sandbox"
_NAME = re.compile(rf"{PREFIX}-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<started>\d+)(?:-.+)?")
_numbers = itertools.count(1)


def instance_name() -> str:
    """The name of this process, the same for its whole life."""
    pid = os.getpid()
    return f"{PREFIX}-{_pid_namespace()}-{pid}-{start_ticks(pid)}"


def next_name() -> str:
    """A fresh name that belongs to this process."""
    return f"{instance_name()}-{next(_numbers)}"


def is_orphan(name: str) -> bool:
    """Whether `name` was given by a process of this pid namespace that is gone."""
    match = _NAME.fullmatch(name)
    if match is None or int(match["namespace"]) != _pid_namespace():
        return False
    return start_ticks(int(match["pid"])) != int(match["started"])


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
