"""Result schemas of requests: which requests have one, and that checking them is bounded for each tenant."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest, LimitReached, Unavailable
from tenure.runtime import schema_checks
from tenure.runtime.observability import metrics
from tenure.runtime.request_context import as_tenant
from tenure.runtime.schema_checks import (
    MAX_PER_TENANT,
    TOO_COSTLY_ANSWER,
    TOO_COSTLY_SCHEMA,
    SchemaChecks,
    check_schema_in_child,
    validate_in_child,
)
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import schedule_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.validators.task import schemas_in

SPEC = task_pb2.TaskSpec(result_schema_json="{}")
OVERRIDES = task_pb2.ForkOverrides(result_schema_json="{}")
FORK = api.ForkTaskRequest(overrides=OVERRIDES)


def everything(*schemas: str) -> Any:
    return lambda _request: [("field", schema) for schema in schemas]


def checked() -> float:
    return metrics.read("tenure_result_schemas_checked_total")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (api.SubmitTaskRequest(spec=task_pb2.TaskSpec(result_schema_json="{}")), "spec.result_schema_json"),
        (api.ForkTaskRequest(overrides=OVERRIDES), "overrides.result_schema_json"),
        (ledger.CreateTaskRequest(spec=SPEC), "spec.result_schema_json"),
        (FORK, "overrides.result_schema_json"),
        (ledger.PrepareForkRequest(fork=FORK), "fork.overrides.result_schema_json"),
        (ledger.FindRepeatRequest(fork_task=FORK), "fork_task.overrides.result_schema_json"),
        (schedule_service_pb2.CreateScheduleRequest(spec=SPEC), "spec.result_schema_json"),
        (schedule_service_pb2.UpdateScheduleRequest(spec=SPEC), "spec.result_schema_json"),
    ],
)
def test_nested_schema_of_a_request_is_checked(request_: Any, field: str) -> None:
    assert schemas_in(request_) == [(field, "{}")]


def test_a_request_without_a_schema_has_none() -> None:
    assert schemas_in(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="g"))) == []
    assert schemas_in(api.GetTaskRequest(task_id="t")) == []


async def test_a_schema_is_checked_once_and_refused_by_its_field() -> None:
    checks, before = SchemaChecks(everything('{"type": "objekt"}')), checked()
    for _ in range(3):
        with pytest.raises(InvalidRequest) as refused:
            await checks.examine(None)
    assert [one.field for one in refused.value.violations] == ["field"]
    assert checked() - before == 1
    await SchemaChecks(everything('{"type": "object"}')).examine(None)


async def test_a_schema_that_takes_too_much_processor_time_is_refused() -> None:
    patterns = [{"pattern": "(?i)" + "[!-\uffff]" * 140 + "x" * number} for number in range(4)]
    assert await check_schema_in_child(json.dumps({"anyOf": patterns}), cpu_seconds=1) == TOO_COSTLY_SCHEMA


async def test_an_answer_that_needs_too_much_memory_is_refused() -> None:
    """Each of 10,000 ways through the branches is an error of its own that quotes the whole answer: 2 GB."""
    schema = {"$defs": {"d": {"anyOf": [{"type": "array"}] * 100}}, "anyOf": [{"$ref": "#/$defs/d"}] * 100}
    judgement = await validate_in_child(json.dumps(schema), json.dumps("x" * 200_000), cpu_seconds=60)
    assert judgement.violations == (TOO_COSTLY_ANSWER,)


async def test_a_machine_without_room_for_a_process_is_too_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_command: str, **_pipes: int) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    with pytest.raises(Unavailable) as busy:
        await check_schema_in_child("{}")
    assert busy.value.reason == "JUDGING_TIMEOUT"


async def test_a_tenant_has_one_check_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tenants are served in between."""
    running: list[str] = []
    go_on = asyncio.Event()

    async def slow(schema_json: str) -> str:
        running.append(schema_json)
        await go_on.wait()
        return ""

    monkeypatch.setattr(schema_checks, "check_schema_in_child", slow)
    checks = SchemaChecks(lambda request: [("field", request)])
    with as_tenant("flood"):
        flood = [asyncio.ensure_future(checks.examine(f"flood {number}")) for number in range(MAX_PER_TENANT)]
        while not running:
            await asyncio.sleep(0)
        with pytest.raises(LimitReached) as refused:
            await checks.examine("one more")
    assert refused.value.reason == "SCHEMA_CHECKS_BUSY"
    with as_tenant("other"):
        other = asyncio.ensure_future(checks.examine("other"))
        while len(running) < 2:
            await asyncio.sleep(0)
    assert running == ["flood 0", "other"]
    go_on.set()
    await asyncio.gather(other, *flood)
    await checks.examine("flood 3")  # known: nothing is checked again
    assert len(running) == MAX_PER_TENANT + 1
