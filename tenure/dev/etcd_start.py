"""Starting an embedded etcd for development and tests, alone or as a cluster.

etcd = start_etcd(Path("data"))          # or: async with running_etcd(Path("data")) as etcd:
…                                        # etcd.endpoint, etcd.version
etcd.stop()
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from tenure.dev.etcd_binary import find_etcd
from tenure.dev.etcd_process import HOST, READY_SECONDS, EtcdMember, EtcdProcess, PortTakenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

# Between finding a free port and etcd's using it, somebody else may take it.
_PORT_TRIES = 3


def start_etcd(
    data_dir: Path,
    *,
    binary: str | Path | None = None,
    arguments: Sequence[str] = (),
    timeout_seconds: float = READY_SECONDS,
) -> EtcdProcess:
    """Start one etcd on free ports over `data_dir`, new or used before, and wait until it answers.

    Raises EtcdMissingError or EtcdStartError.
    """
    return start_cluster(data_dir, size=1, binary=binary, arguments=arguments, timeout_seconds=timeout_seconds)[0]


def start_cluster(
    data_dir: Path,
    *,
    size: int = 3,
    binary: str | Path | None = None,
    arguments: Sequence[str] = (),
    timeout_seconds: float = READY_SECONDS,
) -> list[EtcdProcess]:
    """Start `size` members on free ports under `data_dir` and wait until all answer.

    Members of more than one remember each other's ports: to start them again, use the same EtcdProcess objects.
    Raises EtcdMissingError or EtcdStartError; nothing is left running then.
    """
    path = find_etcd(binary)
    for _ in range(_PORT_TRIES - 1):
        try:
            return _start_together(plan_members(data_dir, size), path, arguments, timeout_seconds)
        except PortTakenError:
            continue
    return _start_together(plan_members(data_dir, size), path, arguments, timeout_seconds)


@asynccontextmanager
async def running_etcd(
    data_dir: Path, *, binary: str | Path | None = None, timeout_seconds: float = READY_SECONDS
) -> AsyncIterator[EtcdProcess]:
    """`start_etcd` for asyncio, stopped at the end. The loop goes on while it is waited for."""
    path = find_etcd(binary)
    for _ in range(_PORT_TRIES - 1):
        etcd = EtcdProcess(plan_members(data_dir, 1)[0], path)
        try:
            await _start(etcd, timeout_seconds)
            break
        except PortTakenError:
            continue
    else:
        etcd = EtcdProcess(plan_members(data_dir, 1)[0], path)
        await _start(etcd, timeout_seconds)
    try:
        yield etcd
    finally:
        await asyncio.to_thread(etcd.stop)


async def _start(etcd: EtcdProcess, timeout_seconds: float) -> None:
    # Started by this thread and not by a helper: on Linux etcd ends with the thread that started it.
    etcd.start()
    try:
        await asyncio.to_thread(etcd.wait_ready, timeout_seconds)
    except BaseException:
        etcd.stop()
        raise


def plan_members(data_dir: Path, size: int) -> list[EtcdMember]:
    """Names, folders and free ports of a new cluster. One alone lives in `data_dir` itself."""
    ports = free_ports(2 * size)
    names = ["tenure"] if size == 1 else [f"tenure-{number}" for number in range(1, size + 1)]
    peers = dict(zip(names, ports[size:], strict=True))
    cluster = ",".join(f"{name}=http://{HOST}:{port}" for name, port in peers.items())
    return [
        EtcdMember(
            name=name,
            data_dir=data_dir if size == 1 else data_dir / name,
            client_port=client_port,
            peer_port=peers[name],
            initial_cluster=cluster,
        )
        for name, client_port in zip(names, ports[:size], strict=True)
    ]


def free_ports(count: int) -> list[int]:
    """So many different TCP ports of the loopback interface that are free at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _start_together(
    plan: list[EtcdMember], binary: Path, arguments: Sequence[str], timeout_seconds: float
) -> list[EtcdProcess]:
    members = [EtcdProcess(member, binary, arguments) for member in plan]
    try:
        # All first: a member is ready only when a majority is there.
        for each in members:
            each.start()
        for each in members:
            each.wait_ready(timeout_seconds)
    except BaseException:
        for each in members:
            each.stop()
        raise
    return members
