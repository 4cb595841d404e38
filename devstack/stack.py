"""Starts all parts of a stack in the order of dependency, and stops them in reverse."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self

from devstack.child_process import ChildProcess, RunningProgram, ServiceDied, StackError
from devstack.clock import install_clock, shift_defaults
from devstack.data_dir import forget_addresses, hold_folder, read_ports, write_addresses, write_ports
from devstack.etcd import EtcdProcess
from devstack.options import (
    HTTP_LISTEN,
    PUBLIC_URL,
    REPLICATED,
    USUAL_PORTS,
    HeldAddresses,
    Layout,
    StackAddresses,
    StackOptions,
    check_tools_file,
    environment_of,
)
from devstack.postgres_process import PostgresProcess
from devstack.programs import check_programs
from devstack.service_forks import ServiceForks
from devstack.service_process import ServiceProcess, SimulatorProcess, metrics_variable, write_targets
from devstack.simulator.scenario import ScenarioError, load_scenario
from devstack.stores import Store, open_etcd, open_postgres
from tenure.domain.models import ANTHROPIC, OPENAI
from tenure.runtime.forks import CAN_FORK
from tenure.runtime.running_stack import CERTIFICATES, SIMULATOR

Tell = Callable[[str], None]

PORT_TRIES: Final = 3
PORT_TAKEN_SIGN: Final = "cannot listen on"
_CALLED_BY_PEOPLE: Final = frozenset({"gateway", "gateway-http"})
"""What people and programs call by its port."""


def ignore_progress(_what: str) -> None:
    """The default of `tell`, which ignores progress."""


class Stack:
    """A development stack. Inside its `async with` all parts serve; afterwards no process of it runs.

    Raises StackError if it cannot start. `tell` gets a short text about each part that starts or stops.
    """

    def __init__(self, options: StackOptions, tell: Tell = ignore_progress) -> None:
        self.options, self._tell = options, tell
        self.layout = Layout(options.data_dir.resolve())
        self.services: dict[str, ServiceProcess] = {}
        self.simulator: SimulatorProcess | None = None
        self.etcd: EtcdProcess | None = None
        self.postgres: PostgresProcess | None = None
        self.stores: dict[str, Store] = {}
        self._known_addresses = StackAddresses()
        self.held_addresses = HeldAddresses()
        self._worker_numbers = itertools.count(options.workers + 1)
        self._opened = AsyncExitStack()
        self._http_addresses: dict[str, str] = {}
        self._ports: dict[str, int] = {}
        self._earlier_ports: dict[str, int] = {}
        self._forks: ServiceForks | None = None
        self.taken_port = 0
        """The port that the gateway did not get, because another process has it."""

    @property
    def gateway_address(self) -> str:
        """The addresses of all gateways for a client, separated by commas."""
        return self._dialled("gateway")

    @property
    def http_url(self) -> str:
        """The URL of the first gateway for HTTP; "" without the option `http`."""
        address = self.services["gateway"].environment.get(HTTP_LISTEN)
        return f"{'https' if self.options.tls else 'http'}://{address}" if address else ""

    @property
    def model_url(self) -> str:
        """The base URLs of the model providers, separated by commas, or the one of the simulator."""
        real = {
            ANTHROPIC: self.options.anthropic_base_url or "https://api.anthropic.com",
            OPENAI: self.options.openai_base_url or "https://api.openai.com/v1",
        }
        return ", ".join(real[vendor] for vendor in self.options.real_vendors) or self._known_addresses.model_url

    @property
    def etcd_endpoints(self) -> str:
        return self._known_addresses.etcd_endpoints

    @property
    def postgres_dsn(self) -> str:
        return self._known_addresses.postgres_dsn

    @property
    def search_url(self) -> str:
        return self._known_addresses.search_url

    @property
    def workers(self) -> list[ServiceProcess]:
        """All workers, in the order of their start."""
        return [service for name, service in self.services.items() if name.startswith("worker-")]

    def replicas(self, kind: str) -> list[ServiceProcess]:
        """Returns the processes of one service of REPLICATED."""
        return [self.services[name] for name in self.options.names_of(kind)]

    async def __aenter__(self) -> Self:
        self._opened.callback(self.held_addresses.close)
        try:
            await asyncio.to_thread(check_programs, self.options, self.layout)
            self._check_scenarios()
            self._take_folder()
            self._check_port()
            await self._check_tools_file()
            if self.options.forked and CAN_FORK:
                self._forks = self._opened.enter_context(ServiceForks(self.options, self.layout))
            await self._start_stores()
            if self._forks:
                await asyncio.to_thread(self._forks.wait_ready)
            await self._start_model()
            await self._start_services()
            certificates = {CERTIFICATES: str(self.layout.certificates.absolute())} if self.options.tls else {}
            simulator = (
                {SIMULATOR: self.simulator.model_url} if self.options.model_is_simulated and self.simulator else {}
            )
            self._write_targets()
            self.remember_ports()
            write_addresses(self.layout.data_dir, {**self.addresses(), **certificates, **simulator})
            self._opened.callback(forget_addresses, self.layout.data_dir)
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    def addresses(self) -> dict[str, str]:
        """Returns the addresses of all parts by name. The addresses of replicas are separated by commas."""
        served = {kind: self._dialled(kind) for kind in REPLICATED if self.options.names_of(kind)}
        workers = {worker.name: worker.address for worker in self.workers}
        http = {"http": self.http_url} if self.http_url else {}
        return {**served, **http, **workers, "etcd": self.etcd_endpoints, "model": self.model_url}

    def _dialled(self, kind: str) -> str:
        return ",".join(replica.address for replica in self.replicas(kind))

    def add_worker(
        self,
        extra: Mapping[str, str] | None = None,
        *,
        command: Sequence[str] = (),
        launch: Callable[..., RunningProgram] | None = None,
    ) -> ServiceProcess:
        """Starts one more worker and does not wait until it serves. `command`: another program that runs a worker.

        `launch`: starts its process instead of `child_process.start_process`.
        """
        worker = self._service(f"worker-{next(self._worker_numbers)}", "worker")
        worker.command, worker.launch = list(command) or worker.command, launch or worker.launch
        worker.start(extra)
        self._write_targets()
        return worker

    def remove_worker(self, worker: ServiceProcess) -> None:
        """Kills a worker and forgets it. No later worker gets its name."""
        worker.kill()
        del self.services[worker.name]
        self.held_addresses.release(worker.address)
        self.held_addresses.release(worker.metrics_address)
        self._write_targets()

    def _take_folder(self) -> None:
        try:
            self.layout.create()
            self._opened.enter_context(hold_folder(self.layout.data_dir))
            self.layout.prepare()
            self._opened.callback(shutil.rmtree, self.layout.secrets, ignore_errors=True)
            if self.options.tls:
                self.layout.make_certificates(self.options)
        except OSError as error:
            raise StackError(
                f"{self.layout.data_dir} cannot be the data folder: {error.strerror or error}; choose one with --data"
            ) from error

    def _check_scenarios(self) -> None:
        for file in self.options.scenario_files:
            try:
                load_scenario(file)
            except ScenarioError as error:
                raise StackError(f"nothing is started: {error}") from error

    def _check_port(self) -> None:
        for name in sorted(_CALLED_BY_PEOPLE) if self.options.port else ():
            self.held_addresses.release(self.choose_address_of(name))

    async def _check_tools_file(self) -> None:
        if self.options.tools_config is not None:
            self._tell("checking the tools file")
            no_addresses = StackAddresses(postgres_dsn="not used before Postgres runs")
            environment = environment_of("tools", "tools", "127.0.0.1:0", self.options, self.layout, no_addresses)
            await check_tools_file({**environment, "TENURE_LOG_LEVEL": "ERROR"}, self.layout.logs)

    async def _start_stores(self) -> None:
        self._tell("starting Postgres")
        store, self.postgres = await open_postgres(self.options, self.layout, self._opened)
        self.stores["Postgres"], self._known_addresses.postgres_dsn = store, store.where
        if self.options.movable_clock:
            await install_clock(self.postgres_dsn)
        self._tell("starting etcd")
        store, self.etcd = await open_etcd(self.options, self.layout, self._opened)
        self.stores["etcd"], self._known_addresses.etcd_endpoints = store, store.where
        self._opened.callback(self._tell, "stopping etcd and Postgres")

    async def _start_model(self) -> None:
        """Starts the simulator. It also serves web search, which is its only use if the options have an API key."""
        self._tell("starting the simulator")
        address = self.choose_address_of("simulator")
        self.simulator = SimulatorProcess(self.layout, address, self.options)
        self.simulator.launch = self._forks.launch if self._forks else self.simulator.launch
        self._opened.push_async_callback(self.simulator.drain)
        self.simulator.start()
        await self.simulator.wait_ready()
        self._known_addresses.search_url = self.simulator.search_url
        simulated = self.options.model_is_simulated
        self._known_addresses.model_url = self.simulator.model_url if simulated else self.options.anthropic_base_url

    async def _start_services(self) -> None:
        self._opened.push_async_callback(self._end_services)
        self._tell("starting checkpoint and tools")
        await self._start_together("checkpoint", "tools")
        if self.options.movable_clock:
            await shift_defaults(self.postgres_dsn)
        self._known_addresses.checkpoint, self._known_addresses.tools = (
            self._dialled("checkpoint"),
            self._dialled("tools"),
        )
        runner = " and the model runner" if self.options.model_runner else ""
        self._tell(f"starting the coordinator{runner}")
        await self._start_together("coordinator", "models")
        self._known_addresses.models = self._dialled("models")
        self._known_addresses.coordinator = self._dialled("coordinator")
        self._tell("starting the gateway and the workers")
        await self._start_together("gateway", "worker")

    async def _start_together(self, *kinds: str) -> None:
        """Starts all replicas of these services. Raises the first failure after all starts have ended."""
        starts = (self._start_service(name, kind) for kind in kinds for name in self.options.names_of(kind))
        for result in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _start_service(self, name: str, kind: str) -> None:
        """Starts one service. Chooses another port if another process took the port before the service used it."""
        for tries_left in reversed(range(PORT_TRIES)):
            service = self._service(name, kind)
            service.start()
            try:
                await service.wait_ready()
            except ServiceDied:
                await service.drain()
                if not tries_left or PORT_TAKEN_SIGN not in service.log_tail():
                    raise
            else:
                return

    async def _end_services(self) -> None:
        """Stops the workers first, so that they can release their claims to a running coordinator."""
        self._tell("stopping the workers")
        await asyncio.gather(*(worker.drain() for worker in self.workers))
        self._tell("stopping the services")
        await asyncio.gather(*(service.drain() for service in self.services.values()))

    def _service(self, name: str, kind: str) -> ServiceProcess:
        address = self.choose_address_of(name)
        environment = environment_of(kind, name, address, self.options, self.layout, self._known_addresses)
        if self.options.metrics:
            environment.setdefault(metrics_variable(kind), self.choose_address_of(f"{name} metrics"))
        if kind == "gateway" and self.options.http and HTTP_LISTEN not in environment:
            environment[HTTP_LISTEN] = self._http_address(name)
        if kind == "checkpoint" and self.options.http:
            scheme = "https" if self.options.tls else "http"
            environment.setdefault(PUBLIC_URL, f"{scheme}://{self._http_address('gateway')}")
        log_path = self.layout.logs / f"{name}.log"
        service = ServiceProcess(name, f"services.{kind}", address, environment, log_path)
        service.launch = self._forks.launch if self._forks else service.launch
        self.services[name] = service
        return service

    def _http_address(self, gateway: str) -> str:
        """Returns where a gateway serves HTTP: the links of answers lead to the first one."""
        if gateway not in self._http_addresses:
            self._http_addresses[gateway] = self.choose_address_of(f"{gateway}-http")
        return self._http_addresses[gateway]

    def _write_targets(self) -> None:
        if self.options.metrics:
            write_targets(self.layout.metrics_targets, self.services.values())

    def choose_address_of(self, name: str) -> str:
        """Returns a free address for a part. Raises StackError if `options.port` is taken."""
        wanted = self._wanted_ports(name)
        address = self.held_addresses.choose(name, usual=False, before=wanted)
        self._ports[name] = port = int(address.rpartition(":")[2])
        if name in _CALLED_BY_PEOPLE and wanted and port != wanted[0]:
            if self.options.port:
                raise StackError(f"port {wanted[0]} is taken by another process: choose another --port")
            if name == "gateway":
                self.taken_port = wanted[0]
        return address

    def _wanted_ports(self, name: str) -> list[int]:
        """Returns the ports that a part gets if they are free, the best one first."""
        if not self.options.usual_ports:
            return []
        usual = [USUAL_PORTS[name]] if name in USUAL_PORTS else []
        if self.options.port:
            return [port - USUAL_PORTS["gateway"] + self.options.port for port in usual]
        self._earlier_ports = self._earlier_ports or read_ports(self.layout.data_dir)
        return [*([self._earlier_ports[name]] if name in self._earlier_ports else []), *usual]

    def remember_ports(self) -> None:
        """Writes down the ports, which the folder's next stack has again."""
        if self.options.usual_ports:
            write_ports(self.layout.data_dir, {**read_ports(self.layout.data_dir), **self._ports})

    def children(self) -> list[ChildProcess]:
        """Returns all processes of the stack except the stores."""
        simulator = [self.simulator] if self.simulator is not None else []
        return [*simulator, *self.services.values()]
