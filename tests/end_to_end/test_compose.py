"""The installation of deploy/compose.yaml: services and stores as processes, and what no account may do with them."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psycopg
import pytest
import pytest_asyncio

from devstack.etcd import environment as etcd_environment
from tenure.client import Client
from tenure.client.files import read_file
from tenure.domain.errors import Unauthenticated, Unavailable
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.support.composed import HOST, Composed, composed, etcdctl
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.nightly]
ROLES = ("ledger_owner", "ledger_service", "tools_owner", "tools_service", "models_owner", "models_service")
OWN_TABLE = {"ledger": "ledger.tasks", "tools": "tools.calls", "models": "models.generations"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Composed]:
    async with composed(tmp_path_factory.mktemp("compose")) as one:
        yield one


def client(one: Composed, key: str) -> Client:
    return Client(f"localhost:{one.ports['gateway']}", api_key=key, tls=ClientTls(one.secrets / "public" / "ca.pem"))


async def refused_sql(dsn: str, statement: str) -> str:
    """The class of the refusal of a statement."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.Error) as refusal:
            await connection.execute(statement.encode())
        return type(refusal.value).__name__


async def test_a_task_succeeds_for_a_client_with_a_key(deployed: Composed) -> None:
    made = await asyncio.to_thread(deployed.run, "checkpoint", "checkpoint", "operator-key")
    assert made.returncode == 0, made.stderr
    request = api.SubmitTaskRequest()
    request.spec.agent.model = "sim-composed"
    async with client(deployed, made.stdout.strip()) as operator:
        task = await operator.submit("Write it down", request=request)
        ended = await operator.wait(task.task_id, PATIENCE_SECONDS)
        assert ended.state == task_pb2.TASK_STATE_SUCCEEDED
        assert b"".join([part async for part in read_file(operator.tasks, task.task_id, "note.txt")]) == b"composed"


async def test_the_gateway_refuses_a_call_without_a_key(deployed: Composed) -> None:
    for key in ("", "tnr_000000000000_" + "A" * 43):
        async with client(deployed, key) as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.submit("Write it down")


async def test_the_gateway_refuses_a_call_without_tls(deployed: Composed) -> None:
    async with Client(f"localhost:{deployed.ports['gateway']}") as stranger:
        with pytest.raises(Unavailable):
            await stranger.submit("Write it down")


@pytest.mark.parametrize("name", ["gateway", "coordinator", "checkpoint", "tools", "models", "worker"])
async def test_each_health_check_of_the_file_passes(deployed: Composed, name: str) -> None:
    healthy = await asyncio.to_thread(deployed.run, name, name, "health")
    assert (healthy.returncode, healthy.stdout) == (0, "SERVING\n"), healthy.stderr
    listen = {f"TENURE_{name.upper()}_LISTEN": f"{HOST}:1"}
    ended = await asyncio.to_thread(lambda: deployed.run(name, name, "health", **listen))
    assert (ended.returncode, f"{HOST}:1 does not answer" in ended.stderr) == (1, True)


async def test_no_role_of_the_database_has_rights_beyond_it(deployed: Composed) -> None:
    for role in ROLES:
        async with await psycopg.AsyncConnection.connect(deployed.dsn(role)) as connection:
            attributes = "rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls"
            found = await connection.execute(f"select {attributes} from pg_roles where rolname = current_user".encode())
            assert await found.fetchone() == (False,) * 5
            assert bool(connection.pgconn.ssl_in_use) is deployed.database_tls
        assert await refused_sql(deployed.dsn(role), "create schema mine") == "InsufficientPrivilege"
        assert await refused_sql(deployed.dsn(role), "create table public.mine (n int)") == "InsufficientPrivilege"


async def test_each_role_reads_its_own_schema_only(deployed: Composed) -> None:
    for role in ROLES:
        own = role.partition("_")[0]
        async with await psycopg.AsyncConnection.connect(deployed.dsn(role)) as connection:
            await connection.execute(f"select from {OWN_TABLE[own]} limit 1".encode())
        for other in OWN_TABLE.keys() - {own}:
            for statement in (
                f"select from {OWN_TABLE[other]}",
                f"delete from {OWN_TABLE[other]}",
                f"create table {other}.mine (n int)",
            ):
                assert await refused_sql(deployed.dsn(role), statement) == "InsufficientPrivilege", (role, statement)


async def test_a_service_cannot_change_what_only_its_owner_may(deployed: Composed) -> None:
    for role, statement in (
        ("ledger_service", "update ledger.audit_records set subject = 'nobody'"),
        ("ledger_service", "delete from ledger.audit_records"),
        ("ledger_service", "truncate ledger.audit_records"),
        ("ledger_service", "alter table ledger.audit_records disable trigger all"),
        ("ledger_service", "delete from ledger.moves"),
        ("ledger_service", "delete from ledger.migrations"),
        ("ledger_service", "create table ledger.mine (n int)"),
        ("ledger_service", "set role ledger_owner"),
        ("tools_service", "delete from tools.migrations"),
        ("tools_service", "create table tools.mine (n int)"),
        ("tools_service", "set role tools_owner"),
        ("models_service", "delete from models.migrations"),
        ("models_service", "create table models.mine (n int)"),
        ("models_service", "set role models_owner"),
    ):
        assert await refused_sql(deployed.dsn(role), statement) == "InsufficientPrivilege", statement


async def test_the_database_admits_its_roles_by_tls_only(deployed: Composed) -> None:
    if not deployed.database_tls:
        pytest.skip("no Postgres with TLS on PATH: install the system's")
    wrong = {
        "without TLS": deployed.dsn("ledger_service", sslmode="disable"),
        "another password": deployed.dsn("ledger_service", password="wrong"),
        "the superuser": deployed.dsn("tenure", password=(deployed.folder / "postgres/tenure.password").read_text()),
        "another database": deployed.dsn("ledger_service", dbname="postgres"),
    }
    for name, dsn in wrong.items():
        with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry|password authentication failed"):
            await psycopg.AsyncConnection.connect(dsn)
        assert name
    other_authority = deployed.dsn("ledger_service", sslrootcert=str(deployed.secrets / "public" / "ca.pem"))
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        await psycopg.AsyncConnection.connect(other_authority)


def etcd_keys(one: Composed, *tls: str) -> subprocess.CompletedProcess[str]:
    """Reads the keys of the coordinators."""
    endpoint = f"--endpoints=https://{HOST}:{one.ports['etcd']}"
    command = [str(etcdctl()), endpoint, *tls, "--command-timeout=5s", "get", "/tenure/", "--prefix", "--keys-only"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=etcd_environment())


async def test_etcd_admits_coordinators_only(deployed: Composed) -> None:
    ca = f"--cacert={deployed.secrets / 'public' / 'stores-ca.pem'}"

    def shown(container: str, name: str) -> list[str]:
        folder = deployed.secrets / container
        return [f"--cert={folder / f'{name}.pem'}", f"--key={folder / f'{name}.key.pem'}"]

    read = etcd_keys(deployed, ca, *shown("coordinator", "etcd-client"))
    assert "/tenure/generation" in read.stdout, read.stderr
    strangers = [shown(name, "certificate") for name in ("gateway", "worker", "tools", "checkpoint", "coordinator")]
    for presented in ([], *strangers, shown("postgres", "postgres")):
        refused = etcd_keys(deployed, ca, *presented)
        assert (refused.returncode, refused.stdout) == (1, ""), presented


def http(one: Composed, scheme: str, path: str, *, shows_certificate: bool) -> str:
    """The answer of etcd to an HTTP request, or how it refuses."""
    context = ssl.create_default_context(cafile=one.secrets / "public" / "stores-ca.pem")
    if shows_certificate:
        own = one.secrets / "coordinator"
        context.load_cert_chain(own / "etcd-client.pem", own / "etcd-client.key.pem")
    url = f"{scheme}://{HOST}:{one.ports['etcd']}{path}"
    request = Request(url, data=b'{"key": "AA=="}' if path.startswith("/v3") else None)
    try:
        with urlopen(request, context=context, timeout=10) as answer:
            return str(answer.status)
    except HTTPError as error:
        return str(error.code)
    except (URLError, OSError) as error:
        return type(error).__name__


async def test_etcd_answers_no_http_without_a_certificate(deployed: Composed) -> None:
    assert http(deployed, "https", "/version", shows_certificate=True) == "200"
    assert http(deployed, "https", "/v3/kv/range", shows_certificate=True) == "404", "the HTTP gateway is off"
    for path in ("/version", "/metrics", "/v3/kv/range"):
        assert not http(deployed, "https", path, shows_certificate=False).startswith("2")
        assert not http(deployed, "http", path, shows_certificate=False).startswith("2")


async def test_no_environment_or_command_has_a_secret(deployed: Composed) -> None:
    files = [path for path in deployed.secrets.rglob("*") if path.is_file() and path.stat().st_mode & 0o044 == 0]
    secrets = {
        path: path.read_text().splitlines()[1 if path.suffix == ".pem" else 0] for path in files if path.read_text()
    }
    assert len(secrets) > 15
    for service in deployed.services.values():
        process = Path(f"/proc/{service.pid}")
        seen = (process / "environ").read_bytes() + (process / "cmdline").read_bytes() if process.exists() else b""
        seen += repr((service.environment, service.command)).encode()
        for path, secret in secrets.items():
            assert secret.encode() not in seen, path
