"""A whole installation for many seeds: its stores, its stack with replicas, every wire, and who looks after it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from devstack import Stack, StackOptions
from devstack.child_process import ChildProcess
from devstack.etcd import EtcdProcess, start_cluster
from devstack.postgres_process import PostgresProcess
from devstack.stores import ensure_database
from tenure.client import Client
from tenure.runtime.request_context import DEFAULT_TENANT
from tests.fault.suite.etcd_log import EtcdLog
from tests.fault.suite.keeper import Keeper
from tests.fault.suite.links import Links, address_of_dsn, lay
from tests.fault.suite.scenarios import write_scenarios
from tests.fault.suite.schedule import GUEST, Shape
from tests.fault.suite.traffic import Traffic
from tests.support.fix_simulator import SimulatorControl

if TYPE_CHECKING:
    from tests.fault.suite.between import Between

REPOSITORY: Final = Path(__file__).parents[3]
DEAF: Final = "worker.ignore_trust_window"
DATABASE: Final = "tenure"
USERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many of everything. `deaf`: the last worker does not hear that it lost its claims; only fences stop it."""

    replicas: int = 2
    workers: int = 3
    etcd_members: int = 1
    slots: int = 16
    deaf: bool = True


@dataclass(slots=True)
class Installation:
    """Runs. `users` are clients of the gateways, each with a connection of its own, `guests` those of another tenant.

    `traffic`: of the seed that runs. `between`: who acts while processes are stopped, where a test has such operators.
    """

    stack: Stack
    postgres: PostgresProcess
    etcd: dict[str, EtcdProcess]
    links: Links
    keeper: Keeper
    etcd_log: EtcdLog
    simulator: SimulatorControl
    users: list[Client] = field(default_factory=list)
    guests: list[Client] = field(default_factory=list)
    traffic: Traffic | None = None
    between: Between | None = None
    store_locks: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    duties: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        return Shape(tuple(self.stack.services), tuple(self.links.by_name), ("postgres", *self.etcd))

    @property
    def logs(self) -> Path:
        return self.stack.layout.logs

    def check_duties(self) -> None:
        """Raises what ended one of them: what is seen without them proves nothing."""
        for duty in self.duties:
            if duty.done():
                duty.result()


@asynccontextmanager
async def installation(folder: Path, size: Size, stores: Path | None = None) -> AsyncIterator[Installation]:
    """Everything serves inside, and nothing is left afterwards. `stores`: a folder for their files."""
    folder.mkdir(parents=True, exist_ok=True)
    stores = stores or folder
    async with PostgresProcess(stores / "postgres") as postgres, _etcd(stores / "etcd", size) as etcd:
        await ensure_database(postgres.dsn(), DATABASE)
        stack: Stack | None = None

        def find(name: str) -> str:
            if name == "postgres":
                return address_of_dsn(postgres.dsn())
            if name in etcd:
                return etcd[name].endpoint
            assert stack is not None
            return stack.services[name].address

        links = Links(find)
        options = await _options(folder, size, postgres, etcd, links)
        stack = Stack(options)
        try:
            async with stack:
                yield await _opened(stack, postgres, etcd, links)
        finally:
            await links.close()


async def _options(
    folder: Path, size: Size, postgres: PostgresProcess, etcd: dict[str, EtcdProcess], links: Links
) -> StackOptions:
    values = {
        "data_dir": folder / "data",
        "workers": size.workers,
        "replicas": dict.fromkeys(("gateway", "coordinator", "checkpoint", "tools"), size.replicas),
        "slots": size.slots,
        "postgres_dsn": postgres.dsn(DATABASE),
        "etcd_endpoints": ",".join(member.endpoint for member in etcd.values()),
        "scenarios": write_scenarios(folder / "scenarios"),
    }
    names = StackOptions(**values).names_of  # type: ignore[arg-type]  # its own fields
    environment = await lay(links, names, postgres.dsn(DATABASE), etcd)
    if size.deaf:
        environment[names("worker")[-1]]["TENURE_FAILPOINTS"] = DEAF
    # A killed ledger's webhooks wait for its turns to run out.
    environment["checkpoint"] = {
        "TENURE_CHECKPOINT_WEBHOOK_LEASE_SECONDS": "3",
        "TENURE_CHECKPOINT_WEBHOOK_REQUEST_TIMEOUT_SECONDS": "1",
    }
    # Calls of a lost runner are given up so soon that people can settle them, and it can wake up, while the seed runs.
    for name in names("tools"):
        environment[name] |= {
            "TENURE_TOOLS_RUNNER_TTL_SECONDS": "3",
            "TENURE_TOOLS_RUNNER_RENEW_INTERVAL_SECONDS": "0.5",
        }
    environment["*"] = {"PYTHONPATH": str(REPOSITORY)}  # the code beside these tests, wherever that was checked out
    return StackOptions(**values, environment=environment)  # type: ignore[arg-type]  # its own fields


async def _opened(stack: Stack, postgres: PostgresProcess, etcd: dict[str, EtcdProcess], links: Links) -> Installation:
    kept: dict[str, ChildProcess] = dict(stack.services)
    return Installation(
        stack=stack,
        postgres=postgres,
        etcd=etcd,
        links=links,
        keeper=Keeper(kept),
        etcd_log=EtcdLog([member.endpoint for member in etcd.values()]),
        simulator=SimulatorControl(stack.model_url, stack.layout.model_log),
    )


@asynccontextmanager
async def attended(install: Installation) -> AsyncIterator[None]:
    """Inside, the dead are started again, etcd is recorded, and the users are connected."""
    install.duties = [asyncio.create_task(install.keeper.run()), asyncio.create_task(install.etcd_log.run())]
    try:
        async with AsyncExitStack() as connected:
            for tenant, count, known in ((DEFAULT_TENANT, USERS, install.users), (GUEST, 1, install.guests)):
                for _ in range(count):
                    client = Client(install.stack.gateway_address, tenant=tenant)
                    known.append(await connected.enter_async_context(client))
            yield
        install.check_duties()
    finally:
        for duty in install.duties:
            duty.cancel()
        await asyncio.gather(*install.duties, return_exceptions=True)


@asynccontextmanager
async def _etcd(folder: Path, size: Size) -> AsyncIterator[dict[str, EtcdProcess]]:
    """One member is called `etcd`, several `etcd-1` and on."""
    members = start_cluster(folder, size=size.etcd_members)
    names = ["etcd"] if len(members) == 1 else [f"etcd-{number}" for number in range(1, len(members) + 1)]
    try:
        yield dict(zip(names, members, strict=True))
    finally:
        for member in members:
            if member.exit_code is None:
                member.kill()
