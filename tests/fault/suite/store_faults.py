"""How the stores are broken, and mended. Faults of one store wait for each other."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Final

from devstack.postgres_cluster import EmbeddedPostgresError
from services.coordinator.etcd.calls import EtcdError
from services.coordinator.etcd.client import EtcdClient
from services.coordinator.lease_store.records import GENERATION_KEY
from tests.fault.suite.etcd_log import PREFIX
from tests.fault.suite.installation import Installation
from tests.fault.suite.schedule import PlannedFault
from tests.fault.suite.signals import send

STORE: Final = "store"  # where a member keeps its data, in its folder
POSTGRES_TRIES: Final = 3


async def mend_stores(install: Installation) -> None:
    """All run and answer."""
    for member in install.etcd.values():
        if member.exit_code is None:
            member.resume()
        else:
            member.start()
    for member in install.etcd.values():
        await asyncio.to_thread(member.wait_ready)
    _signal_postgres(install, signal.SIGCONT)
    await _start_postgres(install)


async def kill_store(install: Installation, fault: PlannedFault) -> None:
    """SIGKILL; back after `seconds`."""
    async with install.store_locks[fault.target]:
        if fault.target == "postgres":
            await asyncio.to_thread(install.postgres.kill)
            await asyncio.sleep(fault.seconds)
            await _start_postgres(install)
        else:
            member = install.etcd[fault.target]
            member.kill()
            await asyncio.sleep(fault.seconds)
            member.start()


async def freeze_store(install: Installation, fault: PlannedFault) -> None:
    """SIGSTOP for `seconds`."""
    async with install.store_locks[fault.target]:
        if fault.target == "postgres":
            _signal_postgres(install, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            _signal_postgres(install, signal.SIGCONT)
        else:
            member = install.etcd[fault.target]
            member.pause()
            await asyncio.sleep(fault.seconds)
            member.resume()


async def lose_generation(install: Installation, _fault: PlannedFault) -> None:
    """As in an etcd that was replaced by an empty one: it does not know which life this is."""
    async with EtcdClient(install.etcd_log.endpoints, namespace=PREFIX) as etcd:
        with suppress(EtcdError):  # it is away just now: a fault upon a fault
            await etcd.delete(GENERATION_KEY)


async def replace_etcd(install: Installation, fault: PlannedFault) -> None:
    """An empty one takes its place: revisions begin at 1 again. What was written until then is recorded before."""
    wires = [link for name, link in install.links.by_name.items() if name.endswith(f">{fault.target}")]
    member = install.etcd[fault.target]
    async with install.store_locks[fault.target]:
        for wire in wires:
            await wire.stop()
        await asyncio.to_thread(member.wait_ready)
        await install.etcd_log.caught_up()
        member.kill()
        shutil.rmtree(member.member.data_dir / STORE)
        member.start()
        await asyncio.to_thread(member.wait_ready)
        for wire in wires:
            await wire.start()


async def _start_postgres(install: Installation) -> None:
    for tries_left in reversed(range(POSTGRES_TRIES)):
        try:
            await install.postgres.start_async()
        except EmbeddedPostgresError:
            if not tries_left:  # all processes come back at once: our own look may find no connection left
                raise
        else:
            return


def _signal_postgres(install: Installation, number: signal.Signals) -> None:
    """The server and every process of it: each connection has one, in a session of its own."""
    pid = install.postgres.pid
    if pid is None:
        return
    send(pid, number)
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    for child in children.stdout.split():
        send(int(child), number)
