"""Who may call what: every method of every server, called with the certificate of every role."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Role
from tenure.runtime.security.certificates import Authority, write_certificate
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import access_rules
from tests.security.access_table import (
    ADMITTED,
    NOT_ALLOWED,
    NOT_SERVED_BY_US,
    SERVICES,
    UNREADABLE,
    Cell,
    Row,
    answered,
    authority_of,
    channel_to,
    issued,
    matrix,
    methods_of,
    wrong_cells,
)
from tests.security.guarded import Guarded
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import one_of_each

# The listener of clients, and one that only processes call.
TWO = one_of_each(SERVICES, kind=lambda process: process == "gateway")


def test_each_method_has_the_access_rule_of_its_row() -> None:
    stated = {}
    for service in {name.partition("/")[0] for name in matrix()}:
        for method, rule in access_rules(f"tenure.v1.{service}").items():
            client = [f"client:{rule.permission.lower()}"] if rule.permission else []
            callers = frozenset([*(role.lower() for role in rule.roles), *client])
            stated[f"{service}/{method}"] = Row(callers, rule.needs_token, rule.is_audited)
    assert stated == matrix()


def test_each_service_of_the_contract_has_rows() -> None:
    served = {name for names in SERVICES.values() for name in names} | NOT_SERVED_BY_US
    assert {name.partition("/")[0] for name in matrix()} == served


def expected_of_role(row: Row, role: Role, process: str) -> str:
    """An operator's certificate stands for every permission of a client."""
    as_client = role is Role.OPERATOR and process == "gateway" and row.permission
    return ADMITTED if role.lower() in row.callers or as_client else NOT_ALLOWED


@pytest.mark.parametrize("process", SERVICES)
async def test_a_role_calls_exactly_the_methods_of_its_row(guarded: Guarded, tmp_path: Path, process: str) -> None:
    rows, cells = matrix(), list[Cell]()
    async with AsyncExitStack() as opened:
        for role in Role:
            tls = issued(tmp_path, authority_of(guarded.stack), role, guarded.ca_file)
            channel = await opened.enter_async_context(channel_to(guarded.stack.services[process], tls))
            cells += [
                Cell(f"{role} {name}", channel, method, (), expected_of_role(rows[name], role, process))
                for name, method in methods_of(process)
            ]
        assert await wrong_cells(cells) == []


@pytest.mark.parametrize("process", TWO)
async def test_a_caller_without_a_valid_certificate_is_refused(guarded: Guarded, tmp_path: Path, process: str) -> None:
    """No connection is made, so one method stands for all of the process."""
    own, foreign = authority_of(guarded.stack), Authority.create(DEFAULT_INSTALLATION, days=1)
    (_, method), cells = next(methods_of(process)), list[Cell]()
    async with AsyncExitStack() as opened:
        for role in Role:
            callers = {
                "no certificate": ClientTls(guarded.ca_file),
                "of another authority": issued(tmp_path, foreign, role, guarded.ca_file, name="foreign"),
                "expired": issued(tmp_path, own, role, guarded.ca_file, days=-0.001, name="expired"),
            }
            for name, tls in callers.items():
                channel = await opened.enter_async_context(channel_to(guarded.stack.services[process], tls))
                cells.append(Cell(f"{role} {name}", channel, method, (), "UNAVAILABLE"))
        address = guarded.stack.services[process].address
        plain = await opened.enter_async_context(grpc.aio.insecure_channel(address))
        cells.append(Cell("no TLS", plain, method, (), "UNAVAILABLE"))
        assert await wrong_cells(cells) == []


@pytest.mark.parametrize("process", TWO)
async def test_a_process_of_another_installation_is_refused(guarded: Guarded, tmp_path: Path, process: str) -> None:
    cells = list[Cell]()
    async with AsyncExitStack() as opened:
        for role in Role:
            certificate, key = authority_of(guarded.stack).issue(role, "stranger", "other", days=1)
            write_certificate(tmp_path, role, certificate, key)
            tls = ClientTls(guarded.ca_file, tmp_path / f"{role}.pem", tmp_path / f"{role}.key.pem")
            channel = await opened.enter_async_context(channel_to(guarded.stack.services[process], tls))
            cells += [
                Cell(f"{role} {name}", channel, method, (), "UNAUTHENTICATED/OTHER_INSTALLATION")
                for name, method in (methods_of(process) if role is Role.OPERATOR else [next(methods_of(process))])
            ]
        assert await wrong_cells(cells) == []


async def test_reflection_is_for_operators_and_health_for_all(guarded: Guarded, tmp_path: Path) -> None:
    for role, expected in ((Role.OPERATOR, "INVALID_ARGUMENT"), (Role.WORKER, NOT_ALLOWED)):
        tls = issued(tmp_path, authority_of(guarded.stack), role, guarded.ca_file)
        async with channel_to(guarded.stack.services["gateway"], tls) as channel:
            path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            call = partial(channel.stream_stream(path), [UNREADABLE], timeout=CALL_SECONDS)
            assert (await answered(call)).removesuffix("/UNREADABLE_MESSAGE") == expected
            health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=CALL_SECONDS)
            assert (await health.code()).name == "OK"


async def test_a_task_runs_through_processes_that_know_each_other(guarded: Guarded) -> None:
    certificates = guarded.stack.layout.certificates
    tls = ClientTls(guarded.ca_file, certificates / "operator.pem", certificates / "operator.key.pem")
    async with Client(guarded.stack.services["gateway"].address, tls=tls) as client:
        task = await client.submit(
            "sim-hello",
            request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model="sim-hello"))),
        )
        assert (await client.wait(task.task_id, PATIENCE_SECONDS)).state == task_pb2.TASK_STATE_SUCCEEDED
