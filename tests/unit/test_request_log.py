"""Each request leaves one line, with its caller and its end, and nothing of its content."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from tenure.domain.errors import NotFound, Unavailable
from tenure.runtime.observability.request_log import LOGGER, level_of, log_request, set_logged_requests
from tenure.runtime.request_context import as_tenant

METHOD = "/tenure.v1.TaskService/GetTask"


@dataclass
class Request:
    task_id: str = ""
    goal: str = "my secret goal"


@pytest.fixture(autouse=True)
def _every(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    set_logged_requests(every=True)
    caplog.set_level(logging.INFO, LOGGER)
    yield
    logging.getLogger(LOGGER).setLevel(logging.NOTSET)


def test_line_has_caller_method_and_status(caplog: pytest.LogCaptureFixture) -> None:
    with as_tenant("acme"):
        log_request(METHOD, Request("task-1"), grpc.StatusCode.NOT_FOUND, 0.01234, NotFound("no task task-1"))
    (record,) = caplog.records
    fields = {name: record.__dict__[name] for name in ("method", "code", "seconds", "tenant", "task", "reason")}
    assert fields == {
        "method": METHOD,
        "code": "NOT_FOUND",
        "seconds": 0.0123,
        "tenant": "acme",
        "task": "task-1",
        "reason": "NOT_FOUND",
    }
    assert record.levelno == logging.INFO
    assert not any("secret" in str(value) for value in record.__dict__.values())


def test_a_stream_has_a_line_without_a_task(caplog: pytest.LogCaptureFixture) -> None:
    log_request(METHOD, iter(()), grpc.StatusCode.OK, 60.0, None)
    assert "task" not in caplog.records[0].__dict__


@pytest.mark.parametrize(
    ("code", "reason", "level"),
    [
        (grpc.StatusCode.OK, "", logging.INFO),
        (grpc.StatusCode.CANCELLED, "", logging.INFO),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", logging.INFO),
        (grpc.StatusCode.ABORTED, "STALE_EPOCH", logging.INFO),
        (grpc.StatusCode.UNAVAILABLE, "POSTGRES_UNAVAILABLE", logging.WARNING),
        (grpc.StatusCode.UNAVAILABLE, "DRAINING", logging.INFO),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "POOL_FULL", logging.WARNING),
        (grpc.StatusCode.INTERNAL, "", logging.ERROR),
    ],
)
def test_level_follows_the_status(code: grpc.StatusCode, reason: str, level: int) -> None:
    assert level_of(code, reason) == level


def test_between_services_only_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    set_logged_requests(every=False)
    log_request(METHOD, Request(), grpc.StatusCode.OK, 0.1, None)
    log_request(METHOD, Request(), grpc.StatusCode.NOT_FOUND, 0.1, NotFound("no task"))
    log_request(METHOD, Request(), grpc.StatusCode.UNAVAILABLE, 0.1, Unavailable("away"))
    assert [record.__dict__["code"] for record in caplog.records] == ["UNAVAILABLE"]
