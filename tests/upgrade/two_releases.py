"""An installation whose processes are of the previous release or of this one, replaced one by one.

Two roles work in each schema, as docs/postgres.md says: the owner migrates, the service may change no schema.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from psycopg import conninfo

from checker.collect import collect_tasks, read_effects
from checker.verify import examine
from devstack import ServiceProcess, Stack, StackOptions
from devstack.postgres_process import PostgresProcess
from devstack.stores import DATABASE, ensure_database
from tenure.client import Client
from tenure.serve import command_line
from tenure.v1 import task_pb2
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.scenarios import append
from tests.support.forked import run_program
from tests.upgrade.previous_release import REPOSITORY, STORES, Store, previous_release

KINDS: Final = ("checkpoint", "tools", "coordinator", "gateway", "worker")
"""The order of an upgrade, as docs/upgrades.md says."""
REPLICAS: Final = {"checkpoint": 2, "tools": 2, "coordinator": 2}
TURNS: Final = 40
LONG: Final = "sim-upgrade-long"
MEDIUM: Final = "sim-upgrade-medium"
SHORT: Final = "sim-upgrade-short"
PASSWORD: Final = uuid.uuid4().hex
ROLES: Final = REPOSITORY / "deploy" / "postgres" / "roles.sql"
# Of a variable that the interpreter reads at its start, the fork server of the tests starts a new interpreter.
OWN_INTERPRETER: Final = {"PYTHONSAFEPATH": "1"}


def both_effects(number: int) -> list[dict[str, Any]]:
    return [append("append_record", f"keyed {number}"), append("append_record_unsafe", f"unsafe {number}")]


def turns(count: int, latency_ms: int) -> list[dict[str, Any]]:
    steps = range(1, count + 1)
    answers = [{"text": f"{n}.", "latency_ms": latency_ms, "calls": both_effects(n)} for n in steps]
    return [*answers, {"text": "All is done."}]


def effects(count: int) -> list[str]:
    return sorted(f"{kind} {number}" for kind in ("keyed", "unsafe") for number in range(1, count + 1))


SCENARIOS: Final = {LONG: turns(TURNS, 1000), MEDIUM: turns(20, 1000), SHORT: turns(5, 200)}
EFFECTS: Final = {LONG: effects(TURNS), MEDIUM: effects(20), SHORT: effects(5)}


@dataclass(slots=True)
class TwoReleases(Installation):
    """`before`: the folder with the code of the previous release. `submitted`: scenario and file of each task."""

    postgres: PostgresProcess
    before: Path
    submitted: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[ServiceProcess]:
        return [one for one in self.stack.services.values() if one.kind == kind]

    async def replace_all(self, kind: str, code: Path) -> None:
        """Drains one process after the other, and starts it with this code."""
        for service in self.of_kind(kind):
            assert await service.drain() == 0, service.log_tail()
            service.environment |= environment_of(code)
            service.start()
            await service.wait_ready()

    async def begin(self, scenario: str) -> str:
        file = uuid.uuid4().hex
        task_id = await self.submit(scenario, file)
        self.submitted[task_id] = (scenario, file)
        return task_id

    async def check_all_ended(self) -> None:
        """No task is lost, no effect is repeated, and no invariant is broken."""
        for task_id, (scenario, file) in self.submitted.items():
            task = await self.ended(task_id)
            assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
            check_whole(await self.entries(task_id))
            assert sorted(self.effects(file)) == EFFECTS[scenario]
        history = await collect_tasks(self.client, self.submitted)
        seen = (one for one in read_effects(self.stack.layout.records) if one.task_id in self.submitted)
        assert examine(replace(history, effects=tuple(seen))).violations == ()


def environment_of(code: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(code), **OWN_INTERPRETER}


def dsn_of(postgres: PostgresProcess, role: str) -> str:
    return conninfo.make_conninfo(postgres.dsn(DATABASE), user=role, password=PASSWORD)


async def migrate(postgres: PostgresProcess, store: Store, code: Path) -> None:
    """`tenure serve NAME migrate` with this code, as the owner of the schema."""
    prefix = f"TENURE_{store.service.upper()}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
        **environment_of(code),
        f"{prefix}_POSTGRES_DSN": dsn_of(postgres, f"{store.schema}_owner"),
        f"{prefix}_SERVICE_ROLE": f"{store.schema}_service",
        f"{prefix}_VERIFYING_KEYS_FILE": "unused",
        **({"TENURE_TOOLS_WORKSPACE_ROOT": "unused"} if store.service == "tools" else {}),
    }
    command = command_line(store.service, "migrate")
    code_of_exit, _, err = await run_program(command, environment=environment, stdin=b"")
    assert code_of_exit == 0, err.decode()


async def migrate_all(postgres: PostgresProcess, code: Path) -> None:
    for store in STORES:
        await migrate(postgres, store, code)


async def make_roles(postgres: PostgresProcess) -> None:
    """Runs deploy/postgres/roles.sql; psql reads its passwords from files, and here they are all one."""
    await ensure_database(postgres.dsn(), DATABASE)
    text = re.sub(r"^\\set .*$", "", ROLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    async with await psycopg.AsyncConnection.connect(postgres.dsn(DATABASE), autocommit=True) as superuser:
        await superuser.execute(re.sub(r":'\w+'", f"'{PASSWORD}'", text).encode(), prepare=False)


@asynccontextmanager
async def two_releases(
    folder: Path, postgres: PostgresProcess, *, start: str, model_runner: bool = False
) -> AsyncIterator[TwoReleases]:
    """All processes serve. `start`: which release they are of, "previous" or "this", as the schemas are."""
    before = folder / "before"
    if previous_release().is_in_history:
        previous_release().unpack(before)
    code = before if start == "previous" else REPOSITORY
    await make_roles(postgres)
    await migrate_all(postgres, code)
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    for name, answers in SCENARIOS.items():
        (scenarios / f"{name.removeprefix('sim-')}.yaml").write_text(yaml.safe_dump(answers))
    environment: dict[str, dict[str, str]] = {
        store.service: {
            f"TENURE_{store.service.upper()}_POSTGRES_DSN": dsn_of(postgres, f"{store.schema}_service"),
            f"TENURE_{store.service.upper()}_MIGRATE": "check",
        }
        for store in STORES
    }
    environment["*"] = environment_of(code)
    stack = Stack(
        StackOptions(
            data_dir=folder / "data",
            replicas=REPLICAS,
            scenarios=scenarios,
            environment=environment,
            postgres_dsn=postgres.dsn(DATABASE),
            model_runner=model_runner,
        )
    )
    async with stack, Client(stack.gateway_address) as client:
        yield TwoReleases(stack, client, postgres, before)


def runs(service: ServiceProcess, code: Path) -> bool:
    """Whether the process was started with this code."""
    entries = Path(f"/proc/{service.pid}/environ").read_bytes().split(b"\0")
    return f"PYTHONPATH={code}".encode() in entries
