"""The data path as real processes: Postgres, the checkpoint service and the tool service, without coordinators.

The bench signs its own fencing tokens with the key of its installation.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from devstack.options import Layout, StackAddresses, StackOptions, choose_address, environment_of
from devstack.postgres_process import PostgresProcess
from devstack.service_process import ServiceProcess
from devstack.stores import DATABASE, ensure_database, open_postgres
from services.checkpoint.queries import SCHEMA
from tenure.domain.access import Role
from tenure.runtime.certificate_files import CertificateFiles, PeerTls
from tenure.runtime.postgres import Pool, PoolOptions, open_pool
from tenure.runtime.rpc_client import TenureChannel, open_channel
from tenure.runtime.signing import Signer
from tenure.runtime.tls import MutualTlsSettings

PROCESSES: Final = {Role.WORKER: "worker-1", Role.COORDINATOR: "coordinator", Role.GATEWAY: "gateway"}
"""The processes whose certificates the bench uses."""


class DataPath:
    """Runs Postgres and the services of `kinds` inside its `async with`.

    `web_search` has no search service here, so it answers at once. `tls`: with mutual TLS. `postgres`: a server that
    runs already, in which it creates the database `database`; without it, it starts its own.
    """

    def __init__(
        self,
        folder: Path,
        *kinds: str,
        tls: bool = False,
        postgres: PostgresProcess | None = None,
        database: str = DATABASE,
    ) -> None:
        self.layout, self.tls = Layout(folder), tls
        self.services: dict[str, ServiceProcess] = {}
        self.dsn = ""
        self.pool: Pool
        self._kinds = kinds
        self._postgres, self._database = postgres, database
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.layout.prepare()
        async with AsyncExitStack() as opening:
            options = StackOptions(data_dir=self.layout.data_dir, tls=self.tls)
            if self.tls:
                self.layout.make_certificates(options)
            if self._postgres is None:
                _, self._postgres = await open_postgres(options, self.layout, opening)
            assert self._postgres is not None, "no option names another server"
            await ensure_database(self._postgres.dsn(), self._database)
            self.dsn = self._postgres.dsn(self._database)
            for kind in self._kinds:
                await self._start(kind, options, opening)
            pool = open_pool(self.dsn, service="bench", schema=SCHEMA, options=PoolOptions(max_size=2))
            self.pool = await opening.enter_async_context(pool)
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    @property
    def signer(self) -> Signer:
        return Signer.load(self.layout.signing_key)

    def channel(self, kind: str, role: Role = Role.WORKER) -> TenureChannel:
        """Returns a channel to a service; with TLS, as a process of the role."""
        if not self.tls:
            return open_channel(self.address(kind))
        name = PROCESSES[role]
        folder = self.layout.certificates
        settings = MutualTlsSettings(
            certificate_file=folder / f"{name}.pem", key_file=folder / f"{name}.key.pem", ca_file=folder / "ca.pem"
        )
        return open_channel(self.address(kind), tls=PeerTls(CertificateFiles(settings), Role[kind.upper()]))

    def address(self, kind: str) -> str:
        """Returns the address of a service."""
        return self.services[kind].address

    def pids(self) -> dict[str, int]:
        """Returns the process ids by name. Postgres is the parent of all its processes."""
        assert self._postgres is not None, "it was started"
        assert self._postgres.pid is not None, "it runs"
        return {**{name: service.pid for name, service in self.services.items()}, "Postgres": self._postgres.pid}

    async def _start(self, kind: str, options: StackOptions, opening: AsyncExitStack) -> None:
        address = choose_address(kind, usual=False, avoid={service.address for service in self.services.values()})
        environment = environment_of(kind, kind, address, options, self.layout, StackAddresses(postgres_dsn=self.dsn))
        service = ServiceProcess(kind, f"services.{kind}", address, environment, self.layout.logs / f"{kind}.log")
        self.services[kind] = service
        opening.push_async_callback(service.drain)
        service.start()
        await service.wait_ready()
