"""`tenure serve all`: its exit code, by which systemd decides whether to start it again, and who calls whom."""

from __future__ import annotations

from importlib import import_module

import pytest

from devstack.all_services import ENDING_SECONDS, completed, exit_code, longest_drain
from devstack.options import CALLED_BY, address_variable
from tenure.runtime.settings import describe
from tenure.serve import SERVICES


@pytest.mark.parametrize(
    ("codes", "is_asked", "expected"),
    [
        ([0, 0, 0], True, 0),
        ([0, 3, 0], True, 3),
        ([0, -9, 0], True, 1),
        ([None, 0], True, 1),
        ([0, 0, 0], False, 1),
        ([0, 3, 0], False, 3),
        ([-9, 0, 0], False, 1),
    ],
)
def test_unrequested_end_is_a_failure(codes: list[int | None], is_asked: bool, expected: int) -> None:
    assert exit_code(codes, is_asked=is_asked) == expected


def test_a_stop_ends_before_systemd_kills() -> None:
    environment = completed({})
    worker_first = longest_drain("worker", environment, ENDING_SECONDS)
    assert worker_first + max(longest_drain(name, environment) for name in SERVICES) < 90
    given = completed({"TENURE_WORKER_DRAIN_SECONDS": "30"})
    assert longest_drain("worker", given, ENDING_SECONDS) == 35


@pytest.mark.parametrize("service", SERVICES)
def test_the_table_has_each_service_that_a_service_calls(service: str) -> None:
    settings = getattr(import_module(f"services.{service}.main"), f"{service.capitalize()}Settings")
    prefix = f"TENURE_{service.upper()}_"
    variables = {line.split()[0] for line in describe(settings, prefix=prefix).splitlines()}
    called = {name for name in SERVICES if address_variable(service, name) in variables}
    assert called == set(CALLED_BY.get(service, ()))
    assert not any(name.endswith("_ADDRESSES") for name in variables), "one form of names"


@pytest.mark.parametrize(
    ("listen", "called"),
    [
        ("127.0.0.1:18471", "127.0.0.1:18471"),
        ("0.0.0.0:18471", "127.0.0.1:18471"),
        ("[::]:18471", "[::1]:18471"),
        ("host-a:18471", "host-a:18471"),
        ("", "127.0.0.1:8471"),
    ],
)
def test_services_are_called_where_they_listen(listen: str, called: str) -> None:
    environment = completed({"TENURE_COORDINATOR_LISTEN": listen, "TENURE_GATEWAY_TOOLS_ADDRESS": "host-b:1"})
    found = {address_variable(service, "coordinator") for service in ("gateway", "worker")}
    assert {environment[name] for name in found} == {called}
    assert (environment["TENURE_GATEWAY_TOOLS_ADDRESS"], environment["TENURE_WORKER_TOOLS_ADDRESS"]) == (
        "host-b:1",
        "127.0.0.1:8473",
    )
