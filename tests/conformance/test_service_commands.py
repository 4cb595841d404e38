"""What an operator types: `tenure serve NAME`, with words and variables that do not fit."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.access import Role
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.serve import command_line
from tests.support.fix_postgres import FreshDatabase
from tests.support.forked import REPOSITORY, run_program
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first, one_of_each

SERVICES = ("gateway", "coordinator", "checkpoint", "tools", "worker", "models")
NEEDED = {
    "gateway": (),
    "coordinator": ("SIGNING_KEY_FILE", "VERIFYING_KEYS_FILE"),
    "checkpoint": ("POSTGRES_DSN", "VERIFYING_KEYS_FILE"),
    "tools": ("POSTGRES_DSN", "VERIFYING_KEYS_FILE", "WORKSPACE_ROOT"),
    "worker": (),
    "models": ("POSTGRES_DSN", "VERIFYING_KEYS_FILE"),
}


async def run(name: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """The exit code, standard output, standard error."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("TENURE_", "ANTHROPIC_", "OPENAI_"))}
    async with asyncio.timeout(PATIENCE_SECONDS):
        code, out, err = await run_program(command_line(name, *arguments), environment={**own, **variables}, stdin=b"")
    return code, out.decode(), err.decode()


@pytest.mark.parametrize("name", first(SERVICES))
async def test_all_missing_unknown_or_malformed_settings_are_reported(name: Any) -> None:
    prefix = f"TENURE_{name.upper()}_"
    code, _, text = await run(name, **{f"{prefix}LISTEN": "nowhere", f"{prefix}LISTENS": "x", "TENURE_LOG_LEVEL": "x"})
    assert code == 2
    assert "Traceback" not in text
    assert f"{prefix}LISTENS is not a setting (did you mean {prefix}LISTEN?)" in text
    assert f"{prefix}LISTEN must" in text
    assert "TENURE_LOG_LEVEL must be one of" in text
    for needed in NEEDED[name]:
        assert f"{prefix}{needed} is missing" in text


@pytest.mark.parametrize("name", first(SERVICES))
async def test_help_lists_every_variable_and_starts_nothing(name: Any) -> None:
    code, text, _ = await run(name, "--help")
    assert code == 0
    for variable in (f"TENURE_{name.upper()}_LISTEN", "TENURE_LOG_FORMAT"):
        assert variable in text
    code, _, text = await run(name, "migrat")
    *others, usage = text.splitlines()
    assert code == 2
    assert usage.startswith(f"usage: tenure serve {name}")
    assert not [line for line in others if "RuntimeWarning" not in line]  # of runpy, in a forked process


async def test_pools_of_workers_need_tls(tmp_path: Path) -> None:
    keys = {f"TENURE_COORDINATOR_{name}_FILE": str(tmp_path / "keys") for name in ("SIGNING_KEY", "VERIFYING_KEYS")}
    code, _, text = await run("coordinator", TENURE_COORDINATOR_POOLS_FILE=str(tmp_path / "pools.yaml"), **keys)
    assert code == 2
    assert "TENURE_COORDINATOR_POOLS_FILE needs TLS" in text
    assert "TENURE_TLS_CERTIFICATE_FILE, TENURE_TLS_KEY_FILE and TENURE_TLS_CA_FILE" in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the file must have one key, pools"),
        ("pools: {a: {identities: [x]}, b: {identities: [x]}}", "x is in the pool a too"),
        ("pools: {a: {identities: [x], colour: [red]}}", "pools.a.colour: the key is unknown"),
        ("pools: {a: {identities: [x], tenants: []}}", "pools.a.tenants: it must be a list"),
        (None, "the file of pools cannot be read: No such file or directory"),
    ],
)
async def test_a_malformed_file_of_pools_stops_the_start(content: str | None, problem: str, tmp_path: Path) -> None:
    certificate, key = Authority.create("tenure", 1).issue(Role.COORDINATOR, "coordinator", "tenure", 1)
    write_certificate(tmp_path, "own", certificate, key)
    pools = tmp_path / "pools.yaml"
    if content is not None:
        pools.write_text(content)
    given = {
        "TENURE_TLS_CERTIFICATE_FILE": tmp_path / "own.pem",
        "TENURE_TLS_KEY_FILE": tmp_path / "own.key.pem",
        "TENURE_TLS_CA_FILE": tmp_path / "own.pem",
        "TENURE_COORDINATOR_SIGNING_KEY_FILE": tmp_path / "keys",
        "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": tmp_path / "keys",
        "TENURE_COORDINATOR_POOLS_FILE": pools,
    }
    code, _, text = await run("coordinator", **{name: str(file) for name, file in given.items()})
    assert code == 2
    assert f"{pools}: " in text
    assert problem in text
    assert "Traceback" not in text


@pytest.mark.parametrize("name", first(["coordinator", "tools", "checkpoint"]))
async def test_a_malformed_key_file_stops_the_start(name: str, fresh_database: FreshDatabase, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    given = {
        "POSTGRES_DSN": await fresh_database() if name != "coordinator" else "",
        "MIGRATE": "auto" if name != "coordinator" else "",
        "WORKSPACE_ROOT": str(tmp_path) if name == "tools" else "",
        "SIGNING_KEY_FILE": str(tmp_path / "keys.json") if name == "coordinator" else "",
        "VERIFYING_KEYS_FILE": str(tmp_path / "keys.json"),
    }
    code, _, text = await run(name, **{f"TENURE_{name.upper()}_{key}": value for key, value in given.items() if value})
    assert code == 2
    assert f"{tmp_path}/keys.json" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ["checkpoint", "tools"])
async def test_migrate_brings_the_database_up_to_date_and_ends(
    name: str, fresh_database: FreshDatabase, signing_keys: Path, tmp_path: Path
) -> None:
    given = {
        "POSTGRES_DSN": await fresh_database(),
        "VERIFYING_KEYS_FILE": str(signing_keys / "verifying.json"),
        **({"WORKSPACE_ROOT": str(tmp_path)} if name == "tools" else {}),
    }
    variables = {f"TENURE_{name.upper()}_{key}": value for key, value in given.items()}
    code, _, text = await run(name, **variables)
    assert (code, "run the migrations first" in text) == (2, True)
    files = list((REPOSITORY / "services" / name / "sql" / "migrations").glob("*.sql"))
    for migrations in (len(files), 0):
        code, _, text = await run(name, "migrate", **variables)
        assert (code, text.count('"message": "migrated"')) == (0, migrations)


async def test_invalid_queues_stop_the_start() -> None:
    for queues in ("two words", ",".join(f"q{number}" for number in range(65))):
        code, _, text = await run("worker", ANTHROPIC_API_KEY="k", TENURE_WORKER_QUEUES=queues)
        assert code == 2
        assert "TENURE_WORKER_QUEUES: at most 64 names" in text


async def test_an_unknown_loop_stops_the_start() -> None:
    code, _, text = await run("worker", ANTHROPIC_API_KEY="k", TENURE_WORKER_LOOPS="messages,mine")
    assert (code, "knows no loop 'mine'" in text) == (2, True)


@pytest.mark.parametrize(
    ("content", "code", "expected"),
    [
        ({"web_search": {"provider": "brave", "api_key": "k"}}, 0, ""),  # counts more than the variable
        ({"providers": {"it": {"address": "nowhere"}}}, 2, "providers.it"),
        ({"mcp_servers": {"it": {"command": "${UNSET}"}}}, 2, "set the variable UNSET"),
        ({"http_tools": {"read_file": {"url": "http://a/", "description": "d"}}}, 2, "http_tools.read_file"),
    ],
)
async def test_the_tools_file_can_be_checked_alone(tmp_path: Path, content: Any, code: int, expected: str) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(content))
    needed = {"POSTGRES_DSN": "nowhere", "VERIFYING_KEYS_FILE": "none", "WORKSPACE_ROOT": str(tmp_path)}
    given = {**needed, "CONFIG_FILE": str(file), "SEARCH_URL": "http://127.0.0.1:1/"}
    ended, _, said = await run("tools", "config", **{f"TENURE_TOOLS_{name}": value for name, value in given.items()})
    assert (ended, expected in said) == (code, True)
    assert "Traceback" not in said


INSECURE = (
    "has no TLS and no authentication: set TENURE_TLS_CERTIFICATE_FILE, TENURE_TLS_KEY_FILE and TENURE_TLS_CA_FILE"
)
ELSEWHERE = "10.255.255.1:1"


def needed_by(name: str) -> dict[str, str]:
    """Values for what a service needs; it must end before it uses them."""
    own = {
        "POSTGRES_DSN": "postgresql://127.0.0.1:1/none",
        "SIGNING_KEY_FILE": "none",
        "VERIFYING_KEYS_FILE": "none",
        "WORKSPACE_ROOT": "/nonexistent",
    }
    chosen = {f"TENURE_{name.upper()}_{key}": own[key] for key in NEEDED[name]}
    return {**chosen, **({"ANTHROPIC_API_KEY": "k"} if name == "worker" else {})}


@pytest.mark.parametrize("name", one_of_each(SERVICES, kind=lambda name: name == "gateway"))
async def test_no_service_serves_other_machines_in_clear_text(name: str) -> None:
    """Also a gateway that demands API keys: without TLS they cross the network in clear text."""
    listen = {f"TENURE_{name.upper()}_LISTEN": "0.0.0.0:0"}
    keys = {"TENURE_GATEWAY_AUTHENTICATION": "api-keys"} if name == "gateway" else {}
    for settings in ({}, keys):
        code, _, text = await run(name, **needed_by(name), **listen, **settings)
        assert (code, "Traceback" in text) == (2, False), text
        assert f"0.0.0.0:0 can be reached from other machines, and this process {INSECURE}" in text
        assert "TENURE_ALLOW_INSECURE_NETWORK=true" in text


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    one_of_each(
        [
            ("gateway", "CHECKPOINT_ADDRESS", ELSEWHERE),
            ("gateway", "COORDINATOR_ADDRESS", f"127.0.0.1:1,{ELSEWHERE}"),
            ("gateway", "TOOLS_ADDRESS", ELSEWHERE),
            ("coordinator", "ETCD_ENDPOINTS", ELSEWHERE),
            ("coordinator", "CHECKPOINT_ADDRESS", ELSEWHERE),
            ("coordinator", "TOOLS_ADDRESS", ELSEWHERE),
            ("checkpoint", "POSTGRES_DSN", f"postgresql://u:secret@{ELSEWHERE}/t"),
            ("tools", "POSTGRES_DSN", f"postgresql://u:secret@{ELSEWHERE}/t?sslmode=prefer"),
            ("models", "POSTGRES_DSN", f"postgresql://u:secret@{ELSEWHERE}/t"),
            ("models", "CHECKPOINT_ADDRESS", ELSEWHERE),
            ("worker", "COORDINATOR_ADDRESS", ELSEWHERE),
            ("worker", "CHECKPOINT_ADDRESS", ELSEWHERE),
            ("worker", "TOOLS_ADDRESS", ELSEWHERE),
        ],
        kind=lambda case: case[0],
    ),
)
async def test_no_service_calls_other_machines_in_clear_text(name: str, variable: str, value: str) -> None:
    full = f"TENURE_{name.upper()}_{variable}"
    code, _, text = await run(name, **{**needed_by(name), full: value})
    assert (code, "Traceback" in text, "secret" in text) == (2, False, False), text
    assert f"{full}: 10.255.255.1 is on another machine, and this process would reach it without TLS: set " in text


@pytest.mark.parametrize("command", first(["migrate", "operator-key", "reencrypt"]))
async def test_no_command_sends_sql_in_clear_text(command: str) -> None:
    dsn = {"TENURE_CHECKPOINT_POSTGRES_DSN": f"postgresql://u:p@{ELSEWHERE}/t"}
    code, _, text = await run("checkpoint", command, **{**needed_by("checkpoint"), **dsn})
    assert (code, "would reach it without TLS" in text) == (2, True), text
