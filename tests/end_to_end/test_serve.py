"""`tenure serve`: services on stores that run already, as an operator starts them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest

from devstack.etcd import EtcdProcess
from devstack.options import HeldAddresses
from tenure.client import Client
from tenure.domain.access import Role
from tenure.domain.errors import Unavailable
from tenure.runtime.security.certificates import make_certificates
from tenure.runtime.security.signing import write_key_pair
from tenure.runtime.security.tls import ClientTls
from tenure.serve import SERVICES, command_line
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.support.fix_postgres import FreshDatabase
from tests.support.fix_simulator import SimulatorControl
from tests.support.forked import run_program
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]
COMMAND: Final = (sys.executable, "-m", "tenure.cli", "serve")


async def run(*arguments: str, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """The exit code and the output of a command that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env=environment, stdout=PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.fixture
async def environment(
    tmp_path: Path, fresh_database: FreshDatabase, own_etcd: EtcdProcess, simulator: SimulatorControl
) -> AsyncIterator[dict[str, str]]:
    """What an operator sets for all services of one machine; the databases are migrated."""
    write_key_pair(tmp_path / "signing.json", tmp_path / "verifying.json", key_id="k1")
    dsn = await fresh_database()
    held = HeldAddresses()
    at = {name: held.choose(name, usual=False) for name in SERVICES}
    variables = {
        "PATH": os.environ["PATH"],
        **{f"TENURE_{name.upper()}_LISTEN": address for name, address in at.items()},
        **{f"TENURE_{name.upper()}_VERIFYING_KEYS_FILE": str(tmp_path / "verifying.json") for name in VERIFYING},
        "TENURE_GATEWAY_HTTP_LISTEN": held.choose("gateway-http", usual=False),
        "TENURE_COORDINATOR_SIGNING_KEY_FILE": str(tmp_path / "signing.json"),
        "TENURE_COORDINATOR_ETCD_ENDPOINTS": own_etcd.endpoint,
        "TENURE_CHECKPOINT_POSTGRES_DSN": dsn,
        "TENURE_TOOLS_POSTGRES_DSN": dsn,
        "TENURE_TOOLS_WORKSPACE_ROOT": str(tmp_path / "workspaces"),
        "TENURE_MODELS_POSTGRES_DSN": dsn,
        "ANTHROPIC_BASE_URL": simulator.url,
        "ANTHROPIC_API_KEY": "sk-simulated",
        "TENURE_ALLOW_INSECURE_MODELS": "true",
    }
    for service in ("checkpoint", "tools", "models"):
        code, _, error = await run_program(command_line(service, "migrate"), environment=variables, stdin=b"")
        assert code == 0, error.decode()
    yield variables
    held.close()


VERIFYING: Final = ("coordinator", "checkpoint", "tools", "models")


@asynccontextmanager
async def served_all(environment: Mapping[str, str], log: Path) -> AsyncIterator[Process]:
    """`tenure serve all`, until it has ended."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "all", env=environment, stdout=out, stderr=asyncio.subprocess.STDOUT
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def hello() -> api.SubmitTaskRequest:
    request = api.SubmitTaskRequest(request_id=str(uuid.uuid4()))
    request.spec.agent.model = "sim-hello"
    return request


async def succeeds(address: str, tls: ClientTls | None = None) -> None:
    """Submits a task, as soon as all services are there, and sees it succeed."""
    request, task = hello(), None
    async with asyncio.timeout(PATIENCE_SECONDS), Client(address, tls=tls) as client:
        while task is None:
            try:
                task = await client.submit("say hello", request=request)
            except Unavailable:
                await asyncio.sleep(0.1)
        assert (await client.wait(task.task_id)).state == task_pb2.TASK_STATE_SUCCEEDED


def children(pid: int) -> dict[str, int]:
    """The services that a process started, by name."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in listed}
    services = {child: words for child, words in commands.items() if b"tenure.serve" in words}  # without their guard
    return {words[words.index(b"tenure.serve") + 1].decode(): child for child, words in services.items()}


async def row_of(query: LiteralString, environment: Mapping[str, str]) -> tuple[Any, ...]:
    async with await psycopg.AsyncConnection.connect(environment["TENURE_MODELS_POSTGRES_DSN"]) as connection:
        row = await (await connection.execute(query)).fetchone()
        assert row is not None
        return row


async def calls_of_the_runner(environment: Mapping[str, str]) -> int:
    """How many tasks have a model call that the model runner made."""
    (count,) = await row_of("select count(*) from models.generations where begun_epoch > 0", environment)
    return int(count)


async def test_all_services_run_a_task_and_stop_in_order(
    environment: dict[str, str], tmp_path: Path, simulator: SimulatorControl
) -> None:
    """The worker first: it gives its task back, which needs the checkpoint service and the coordinator."""
    environment["TENURE_MODELS_DRAIN_SECONDS"] = "0"  # the slow call is lost; its task goes on at the next start
    async with served_all(environment, tmp_path / "log") as process:
        await succeeds(environment["TENURE_GATEWAY_LISTEN"])
        assert await calls_of_the_runner(environment) == 1
        simulator.order_fault(latency_ms=600_000)
        async with Client(environment["TENURE_GATEWAY_LISTEN"]) as client, asyncio.timeout(PATIENCE_SECONDS):
            await client.submit("say hello", request=hello())
            while not await asyncio.to_thread(simulator.running):
                await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 0, (tmp_path / "log").read_text()
    state = await row_of("select state, reason from ledger.tasks where ended_at is null", environment)
    assert state == ("QUEUED", "WORKER_DRAINED"), (tmp_path / "log").read_text()


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at processes through /proc")
async def test_a_service_that_dies_stops_all_others(environment: dict[str, str], tmp_path: Path) -> None:
    async with served_all(environment, tmp_path / "log") as process:
        await succeeds(environment["TENURE_GATEWAY_LISTEN"])
        started = children(process.pid)
        assert set(started) == set(SERVICES)
        os.kill(started["worker"], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in started.values())
    assert "tenure: worker ended with code -9; the other services are stopped" in (tmp_path / "log").read_text()


@pytest.mark.nightly
async def test_an_empty_address_of_runners_is_the_direct_way(environment: dict[str, str], tmp_path: Path) -> None:
    direct = {**environment, "TENURE_WORKER_MODELS_ADDRESS": ""}
    del direct["TENURE_MODELS_VERIFYING_KEYS_FILE"]  # what only the model runner needs
    async with served_all(direct, tmp_path / "log"):
        await succeeds(direct["TENURE_GATEWAY_LISTEN"])
        assert await calls_of_the_runner(environment) == 0


@pytest.mark.nightly
async def test_each_service_gets_its_own_certificate(environment: dict[str, str], tmp_path: Path) -> None:
    """`{service}` in the paths. A client without a certificate of these authorities does not get in."""
    certs = tmp_path / "certs"
    make_certificates(
        certs, [(role, role.lower()) for role in Role], installation="tenure", days=1, hosts=["127.0.0.1"]
    )
    secured = {
        **environment,
        "TENURE_TLS_CERTIFICATE_FILE": f"{certs}/{{service}}.pem",
        "TENURE_TLS_KEY_FILE": f"{certs}/{{service}}.key.pem",
        "TENURE_TLS_CA_FILE": str(certs / "ca.pem"),
    }
    operator = ClientTls(certs / "ca.pem", certs / "operator.pem", certs / "operator.key.pem")
    async with served_all(secured, tmp_path / "log"):
        await succeeds(environment["TENURE_GATEWAY_LISTEN"], tls=operator)
        assert await calls_of_the_runner(environment) == 1
        async with Client(environment["TENURE_GATEWAY_LISTEN"]) as stranger:
            with pytest.raises(Unavailable):
                await anext(stranger.list_tasks(limit=1), None)


@pytest.mark.nightly
async def test_one_certificate_for_all_services_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    """Before any service starts."""
    one = {**environment, "TENURE_TLS_CERTIFICATE_FILE": str(tmp_path / "gateway.pem")}
    code, text = await run("all", environment=one)
    assert code == 2
    assert text.startswith("tenure: TENURE_TLS_CERTIFICATE_FILE names one file for all services, but each needs")
    assert len(text.splitlines()) == 1
    assert "TENURE_TLS_CERTIFICATE_FILE=certs/{service}.pem" in text


@pytest.mark.nightly
async def test_a_service_reads_its_own_arguments(environment: dict[str, str]) -> None:
    code, text = await run("checkpoint", "--help", environment=environment)
    assert code == 0
    assert text.startswith("usage: tenure serve checkpoint [--help | health | migrate")
    assert "TENURE_CHECKPOINT_POSTGRES_DSN" in text
    code, text = await run("gateway", "migrate", environment=environment)
    assert (code, text.startswith("usage: tenure serve gateway")) == (2, True)


@pytest.mark.nightly
async def test_a_service_has_no_process_of_the_command(environment: dict[str, str]) -> None:
    """Signals reach the service, and its container's first process is the service."""
    process = await asyncio.create_subprocess_exec(*COMMAND, "simulator", env=environment, stdout=PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await process.stdout.readline()).startswith(b"model simulator on ")
        process.terminate()
        assert await process.wait() == 0
