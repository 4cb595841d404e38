"""Secrets are in their files and in the memory of those who use them, and nowhere else, also after faults."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml
from psycopg import sql

from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import Permission
from tenure.domain.errors import Unauthenticated
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import api_key_service_pb2, task_pb2, webhook_service_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS
from tests.support.fix_collector import Collector
from tests.support.fix_webhooks import MakeReceiver
from tests.support.http_stub import HttpStub, Seen, page
from tests.support.lives import LONG_LIFE
from tests.support.noisy_tenants import operator_key
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.faults

MODEL_KEY: Final = "sk-ant-planted-7f3a91c2d4"
CRM_TOKEN: Final = "crm-planted-55e0b8aa31"
CANARY: Final = "canary-goal-1b9d77"
"""No secret: it is in every place where a task's texts belong."""
CALL_TWICE: Final = [
    {"text": "First.", "calls": [{"name": "crm_note", "arguments": {"text": "{{goal}}"}}]},
    {"text": "Second.", "calls": [{"name": "crm_note", "arguments": {"text": "again"}}]},
    {"text": "Done."},
]


@dataclass(frozen=True)
class Watched:
    """A stack with planted secrets, and the secrets of its own making."""

    stack: Stack
    operator: str
    crm: HttpStub
    restarted: asyncio.Event

    def client(self, key: str) -> Client:
        return Client(self.stack.gateway_address, api_key=key, tls=ClientTls(self.stack.layout.certificates / "ca.pem"))

    def own_secrets(self) -> dict[str, str]:
        layout = self.stack.layout
        pems = {path.name: path.read_text().splitlines()[1] for path in sorted(layout.certificates.glob("*.key.pem"))}
        private = json.loads(layout.signing_key.read_text())
        signing = max((value for value in private.values() if isinstance(value, str)), key=len)
        password = urlsplit(self.stack.postgres_dsn).password
        assert password
        return {**pems, "signing key": signing, "database password": password, "operator key": self.operator}


@asynccontextmanager
async def watched(folder: Path, collector: Collector) -> AsyncIterator[Watched]:
    scenarios, token, config = folder / "scenarios", folder / "crm-token", folder / "tools.yaml"
    scenarios.mkdir()
    (scenarios / "crm.yaml").write_text(yaml.safe_dump(CALL_TWICE))
    token.write_text(CRM_TOKEN)
    restarted = asyncio.Event()

    async def answer(seen: Seen) -> AsyncIterator[bytes]:
        if b"again" in seen.body:
            await restarted.wait()
        yield page("noted")

    async with HttpStub(answer) as crm:
        tool = {
            "url": crm.url("/notes"),
            "method": "POST",
            "description": "Writes a note.",
            "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}},
            "effect_class": "IDEMPOTENT",
            "headers": {"Authorization": "Bearer ${CRM_TOKEN}"},
            "allow_private": True,
        }
        config.write_text(yaml.safe_dump({"http_tools": {"crm_note": tool}}))
        environment = {
            # With a variable of the interpreter, services start as elsewhere: not forked from a process of the suite.
            "*": {**LONG_LIFE, **collector.environment, "PYTHONHASHSEED": "7"},
            "gateway": {"TENURE_GATEWAY_AUTHENTICATION": "api-keys"},
            "worker": {"ANTHROPIC_API_KEY": MODEL_KEY},
            "tools": {"CRM_TOKEN_FILE": str(token)},
        }
        options = StackOptions(
            data_dir=folder / "data", scenarios=scenarios, tools_config=config, environment=environment, tls=True
        )
        async with Stack(options) as stack:
            yield Watched(stack, await operator_key(stack), crm, restarted)


async def test_secrets_are_nowhere_else(tmp_path: Path, collector: Collector, webhook_receiver: MakeReceiver) -> None:
    async with watched(tmp_path, collector) as one:
        receiver = await webhook_receiver()
        secrets = {"model key": MODEL_KEY, "CRM token": CRM_TOKEN, **one.own_secrets()}
        async with one.client(one.operator) as operator:
            permissions = [PERMISSIONS.to_wire(Permission.TENANT_ADMIN)]
            request = api_key_service_pb2.CreateApiKeyRequest(name="app", permissions=permissions)
            secrets["client key"] = (await operator.api_keys.CreateApiKey(request)).secret
        wrong = secrets["wrong key"] = f"{secrets['client key'][:-6]}AAAAAA"
        async with one.client(secrets["client key"]) as client:
            created = await client.webhooks.CreateWebhook(
                webhook_service_pb2.CreateWebhookRequest(name="app", url=receiver.url)
            )
            receiver.secrets = [created.secret]
            secrets["webhook secret"] = created.secret.removeprefix("whsec_")
            await run_with_faults(one, client)
            await receiver.until(1)
        async with one.client(wrong) as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.submit(CANARY)
        assert one.crm.seen[0].headers["authorization"] == f"Bearer {CRM_TOKEN}", "the secret was used"
        async with asyncio.timeout(PATIENCE_SECONDS):  # each service pushes its metrics by itself
            while b"tenure-worker" not in collector.received:
                await asyncio.sleep(0.1)
        await check_occurrences(await occurrences_of(one.stack, collector), secrets)
        assert MODEL_KEY in "".join(path.read_text() for path in one.stack.layout.secrets.iterdir())
    assert not one.stack.layout.secrets.exists(), "they are there while the stack runs"


async def run_with_faults(one: Watched, client: Client) -> None:
    """A task whose worker is killed while its second call runs, and a gateway that restarts."""
    request = api.SubmitTaskRequest()
    request.spec.agent.model = "sim-crm"
    task_id = (await client.submit(CANARY, request=request)).task_id
    owner = ""
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(client.watch(task_id)) as events:
        async for event in events:
            body = event.entry.body
            if body.transition.to_state == task_pb2.TASK_STATE_RUNNING:
                owner = event.entry.actor
            if body.WhichOneof("body") == "tool_outcome":
                break
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(one.crm.seen) < 2:
            await asyncio.sleep(0.05)
    one.stack.services[owner].kill()
    await one.stack.services["gateway"].restart()
    await one.stack.services[owner].restart()
    one.restarted.set()
    ended = await client.wait(task_id, PATIENCE_SECONDS)
    assert ended.state == task_pb2.TASK_STATE_SUCCEEDED
    assert ended.claim_count == 2


async def occurrences_of(stack: Stack, collector: Collector) -> dict[str, bytes]:
    """What is written anywhere, and what other processes of this machine can see."""
    layout = stack.layout
    environments, commands = processes_of(str(layout.data_dir))
    folders = {"logs": layout.logs, "etcd": layout.etcd, "workspaces": layout.workspaces, "records": layout.records}
    return {
        **{name: files_in(folder) for name, folder in folders.items()},
        "simulator's bill": layout.model_log.read_bytes(),
        "addresses": (layout.data_dir / "dev.json").read_bytes(),
        "database": await database_of(stack.postgres_dsn),
        "traces": bytes(collector.received),
        "environments": environments,
        "command lines": commands,
    }


def files_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def processes_of(folder: str) -> tuple[bytes, bytes]:
    """Environments and command lines of the processes that have to do with this folder; Linux only."""
    environments, commands = bytearray(), bytearray()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:  # it ended, or belongs to another account
            continue
        if folder.encode() in environment + command and int(process.name) != os.getpid():
            environments += environment
            commands += command
    return bytes(environments), bytes(commands)


async def database_of(dsn: str) -> bytes:
    """The rows of all tables, with texts and bytes as they are."""
    rows = bytearray()
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        tables = await connection.execute(
            "select schemaname, tablename from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
        )
        for names in await tables.fetchall():
            statement = sql.SQL("copy (select * from {}) to stdout (format binary)").format(sql.Identifier(*names))
            async with connection.cursor() as cursor, cursor.copy(statement) as copied:
                async for chunk in copied:
                    rows += chunk
    return bytes(rows)


async def check_occurrences(places: dict[str, bytes], secrets: dict[str, str]) -> None:
    """No secret is in any place. What belongs there is found first, so the search works."""
    known = {
        "logs": "audit_head",
        "etcd": "/tenure/",
        "database": CANARY,
        "traces": "tenure-worker",
        "environments": "TENURE_WORKER_ID",
        "command lines": "tenure.serve\0checkpoint",
        "addresses": "gateway",
        "simulator's bill": "crm",
    }
    if Path("/proc/self/environ").exists():
        assert {place for place, text in known.items() if text.encode() not in places[place]} == set()
    texts = [(name, secret.encode()) for name, secret in secrets.items()]
    texts.append(("bytes of the webhook secret", base64.b64decode(secrets["webhook secret"])))
    found = {(name, place) for name, secret in texts for place in places if secret in places[place]}
    assert found == set()
