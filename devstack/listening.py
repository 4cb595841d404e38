"""Tells which process listens at a port, so that a service of another stack is not taken for ours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_TABLES: Final = ("net/tcp", "net/tcp6")


def listens(leader: int, port: int) -> bool:
    """Whether the process or a descendant in its session has a listening socket at the port.

    True where the system does not tell: only Linux does.
    """
    if sys.platform != "linux":
        return True
    try:
        sockets = {f"socket:[{inode}]" for inode in _inodes(leader, port)}
        return bool(sockets) and any(sockets.intersection(_open_files(pid)) for pid in _session_of(leader))
    except PermissionError:
        return True
    except OSError:  # the process has ended
        return False


def _inodes(pid: int, port: int) -> Iterator[str]:
    """Yields the listening sockets at the port, of any process in the network of `pid`."""
    for table in _TABLES:
        for line in Path(f"/proc/{pid}/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _session_of(leader: int) -> Iterator[int]:
    yield leader
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and folder.name != str(leader):
            with suppress(ProcessLookupError):  # it ended since it was listed
                if os.getsid(int(folder.name)) == leader:
                    yield int(folder.name)


def _open_files(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since it was listed
            yield str(descriptor.readlink())
