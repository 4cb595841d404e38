"""Tells which process listens at a port, so that a service of another stack is not taken for ours."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

# From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h. The text of /proc/net/tcp says the
# same, but the kernel writes it from all connections of the machine: 0.1 s of processor time where there are thousands.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR: Final = 2
_DONE: Final = 3
_LISTEN: Final = 1 << 10
_HEADER: Final = Struct("=IHHII")  # length, type, flags, sequence, port id
_QUESTION: Final = Struct("=BBBxI2s46x")  # family, protocol, extensions, states, the socket's port in network order
_INODE: Final = Struct("=68xI")
_LONGEST_ANSWER: Final = 1 << 16


def listens(leader: int, port: int) -> bool:
    """Whether the process or a descendant in its session has a listening socket at the port.

    True where the system does not tell: only Linux does, about the network that this process is in.
    """
    if sys.platform != "linux":
        return True
    try:
        sockets = {
            f"socket:[{inode}]" for family in (socket.AF_INET, socket.AF_INET6) for inode in _inodes(family, port)
        }
    except OSError:
        return True
    try:
        return bool(sockets) and any(sockets.intersection(_open_files(pid)) for pid in _session_of(leader))
    except PermissionError:
        return True
    except OSError:  # the process has ended
        return False


def _inodes(family: int, port: int) -> Iterator[int]:
    """Yields the sockets that listen at the port, of any process."""
    assert sys.platform == "linux"
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _LISTEN, port.to_bytes(2, "big"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + question)
        while True:
            answers = memoryview(netlink.recv(_LONGEST_ANSWER))
            while answers:
                length, kind, *_ = _HEADER.unpack_from(answers)
                answer, answers = answers[_HEADER.size : length], answers[length + -length % 4 :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-int.from_bytes(answer[:4], sys.byteorder, signed=True), "no sockets were listed")
                yield _INODE.unpack_from(answer)[0]


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
