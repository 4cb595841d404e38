"""All parts of Tenure on this machine, in the order in which they need each other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tenure.dev.etcd_process import EtcdProcess
from tenure.dev.etcd_start import running_etcd
from tenure.dev.postgres_process import PostgresProcess
from tenure.dev.stack.addresses import choose_address, forget_addresses, write_addresses
from tenure.dev.stack.database import ensure_database
from tenure.dev.stack.layout import Layout
from tenure.dev.stack.service import ServiceProcess
from tenure.dev.stack.simulator import start_simulator

DATABASE: Final = "tenure"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What to start. `environment` adds variables by service ("worker", "worker-2", "tools", "*" …)."""

    data_dir: Path
    workers: int = 2
    slots: int = 16
    usual_ports: bool = False
    postgres_dsn: str = ""
    postgres_binaries: Path | None = None
    etcd_endpoints: str = ""
    etcd_binary: Path | None = None
    anthropic_api_key: str = ""
    anthropic_base_url: str = ""
    model: str = ""
    model_latency_ms: int = 0
    log_format: str = "json"
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Stack:
    """Inside `async with` everything serves; afterwards nothing of it runs."""

    def __init__(self, options: StackOptions) -> None:
        self.options = options
        self.layout = Layout(options.data_dir.resolve())
        self.services: dict[str, ServiceProcess] = {}
        self.etcd: EtcdProcess | None = None
        self.postgres: PostgresProcess | None = None
        self.etcd_endpoints, self.postgres_dsn = options.etcd_endpoints, options.postgres_dsn
        self.model_url = options.anthropic_base_url
        self.search_url = ""
        self._opened = AsyncExitStack()

    @property
    def gateway_address(self) -> str:
        return self.services["gateway"].address

    @property
    def workers(self) -> list[ServiceProcess]:
        """In the order of their names."""
        return [service for name, service in self.services.items() if name.startswith("worker-")]

    async def __aenter__(self) -> Self:
        try:
            self.layout.prepare()
            await self._start_stores()
            await self._start_model()
            await self._start_services()
        except BaseException:
            await self._opened.aclose()
            raise
        write_addresses(self.layout.data_dir, self.addresses())
        self._opened.callback(forget_addresses, self.layout.data_dir)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    def addresses(self) -> dict[str, str]:
        """Everything that can be dialled."""
        served = {name: service.address for name, service in self.services.items()}
        return {**served, "etcd": self.etcd_endpoints, "model": self.model_url or "https://api.anthropic.com"}

    def add_worker(self, extra: Mapping[str, str] | None = None) -> ServiceProcess:
        """Starts one more worker, without waiting for it."""
        worker = self._service(f"worker-{len(self.workers) + 1}", "worker", self._worker_environment())
        worker.start(extra)
        return worker

    async def _start_stores(self) -> None:
        if not self.postgres_dsn:
            process = PostgresProcess(self.layout.postgres, binaries_directory=self.options.postgres_binaries)
            self.postgres = await self._opened.enter_async_context(process)
            await ensure_database(self.postgres.dsn(), DATABASE)
            self.postgres_dsn = self.postgres.dsn(DATABASE)
        if not self.etcd_endpoints:
            started = running_etcd(self.layout.etcd, binary=self.options.etcd_binary)
            self.etcd = await self._opened.enter_async_context(started)
            self.etcd_endpoints = self.etcd.endpoint

    async def _start_model(self) -> None:
        """The simulator also serves the search endpoint; with a key of your own only that of it is used."""
        simulator = await self._opened.enter_async_context(
            start_simulator(self.layout, self.options.usual_ports, self.options.model_latency_ms)
        )
        self.search_url = simulator.search_url
        if not self.options.anthropic_api_key:
            self.model_url = simulator.model_url

    async def _start_services(self) -> None:
        self._opened.push_async_callback(self._end_services)
        first = self._service("checkpoint", "checkpoint", self._checkpoint_environment())
        tools = self._service("tools", "tools", self._tools_environment())
        await self._start_together(first, tools)
        await self._start_together(self._service("coordinator", "coordinator", self._coordinator_environment()))
        gateway = self._service("gateway", "gateway", self._peer_addresses("GATEWAY"))
        workers = [
            self._service(f"worker-{number}", "worker", self._worker_environment())
            for number in range(1, self.options.workers + 1)
        ]
        await self._start_together(gateway, *workers)

    async def _start_together(self, *services: ServiceProcess) -> None:
        for service in services:
            service.start()
        await asyncio.gather(*(service.wait_ready() for service in services))

    async def _end_services(self) -> None:
        """Workers first: they give their tasks back while there is somebody to give them to."""
        await asyncio.gather(*(worker.drain() for worker in self.workers))
        await asyncio.gather(*(service.drain() for service in self.services.values()))

    def _service(self, name: str, kind: str, environment: dict[str, str]) -> ServiceProcess:
        address = choose_address(name, usual=self.options.usual_ports)
        added = {
            variable: value
            for key in ("*", kind, name)
            for variable, value in self.options.environment.get(key, {}).items()
        }
        own = {
            f"TENURE_{kind.upper()}_LISTEN": address,
            "TENURE_LOG_FORMAT": self.options.log_format,
            **({"TENURE_WORKER_ID": name} if kind == "worker" else {}),
        }
        log_path = self.layout.logs / f"{name}.log"
        service = ServiceProcess(name, f"services.{kind}", address, {**own, **environment, **added}, log_path)
        self.services[name] = service
        return service

    def _checkpoint_environment(self) -> dict[str, str]:
        return {
            "TENURE_CHECKPOINT_POSTGRES_DSN": self.postgres_dsn,
            "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": str(self.layout.verifying_keys),
            "TENURE_CHECKPOINT_MIGRATE": "auto",
        }

    def _tools_environment(self) -> dict[str, str]:
        return {
            "TENURE_TOOLS_POSTGRES_DSN": self.postgres_dsn,
            "TENURE_TOOLS_VERIFYING_KEYS_FILE": str(self.layout.verifying_keys),
            "TENURE_TOOLS_MIGRATE": "auto",
            "TENURE_TOOLS_WORKSPACE_ROOT": str(self.layout.workspaces),
            "TENURE_TOOLS_RECORDS_DIR": str(self.layout.records),
            "TENURE_TOOLS_SEARCH_URL": self.search_url,
        }

    def _coordinator_environment(self) -> dict[str, str]:
        return {
            "TENURE_COORDINATOR_ETCD_ENDPOINTS": self.etcd_endpoints,
            "TENURE_COORDINATOR_CHECKPOINT_ADDRESS": self.services["checkpoint"].address,
            "TENURE_COORDINATOR_TOOLS_ADDRESS": self.services["tools"].address,
            "TENURE_COORDINATOR_SIGNING_KEY_FILE": str(self.layout.signing_key),
            "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": str(self.layout.verifying_keys),
        }

    def _worker_environment(self) -> dict[str, str]:
        environment = {
            "TENURE_WORKER_COORDINATOR_ADDRESSES": self.services["coordinator"].address,
            "TENURE_WORKER_CHECKPOINT_ADDRESS": self.services["checkpoint"].address,
            "TENURE_WORKER_TOOLS_ADDRESS": self.services["tools"].address,
            "TENURE_WORKER_SLOTS": str(self.options.slots),
            "ANTHROPIC_API_KEY": self.options.anthropic_api_key or "simulated",
            "ANTHROPIC_BASE_URL": self.model_url,
        }
        if self.options.model:
            environment["TENURE_WORKER_MODEL"] = self.options.model
        return environment

    def _peer_addresses(self, prefix: str) -> dict[str, str]:
        return {
            f"TENURE_{prefix}_{name.upper()}_ADDRESS": self.services[name].address
            for name in ("checkpoint", "coordinator", "tools")
        }
