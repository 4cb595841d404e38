"""What Prometheus reads is what the registry has, whatever the service is doing meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.checkpoint.commit.draft import Move
from services.checkpoint.rows import BillRow
from services.checkpoint.watch.announcement import Announcement
from services.checkpoint.watch.ledger_metrics import count_announced, pickup_cause
from tenure.domain.budget import TokenUsage
from tenure.domain.states import Reason, TaskState
from tenure.runtime import service
from tenure.runtime.observability import metrics
from tenure.runtime.observability import metrics as model_labels
from tenure.runtime.observability.metric_catalogue import CATALOGUE
from tenure.runtime.observability.metrics import OTHERS, BoundedNames, MetricRegistry
from tenure.runtime.observability.prometheus import metrics_endpoint
from tenure.runtime.process import Process
from tenure.runtime.service import CommonSettings, sampling
from tenure.runtime.settings import Address, ConfigurationError

ANY_PORT = Address("127.0.0.1:0")


def read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricRegistry]:
    """Instead of that of the process, for `count`, `gauge` and `observe`."""
    fresh = MetricRegistry()
    monkeypatch.setattr(metrics, "REGISTRY", fresh)
    monkeypatch.setattr(model_labels, "_named", BoundedNames(model_labels.MAX_MODELS))
    yield fresh
    metrics.name_tenants(0)


async def test_endpoint_serves_the_registry() -> None:
    registry = MetricRegistry()
    registry.cell("tenure_grants_total").value = 3
    registry.cell("tenure_slots", state="free").value = 2
    registry.cell("odd", text='a "quoted"\nline').value = 1
    for seconds in (0.2, 0.3, 70.0):
        registry.histogram("tenure_pickup_seconds", cause="NEW").observe(seconds)
    async with metrics_endpoint(ANY_PORT, registry) as address:
        text = await asyncio.to_thread(read, address)
    read_back = samples(text)
    assert read_back["tenure_grants_total", ()] == 3
    assert read_back["tenure_slots", (("state", "free"),)] == 2
    assert read_back["odd", (("text", 'a "quoted"\nline'),)] == 1
    cause = ("cause", "NEW")
    assert read_back["tenure_pickup_seconds_bucket", (cause, ("le", "0.25"))] == 1
    assert read_back["tenure_pickup_seconds_bucket", (cause, ("le", "60.0"))] == 2
    assert read_back["tenure_pickup_seconds_bucket", (cause, ("le", "+Inf"))] == 3
    assert read_back["tenure_pickup_seconds_count", (cause,)] == 3
    assert read_back["tenure_pickup_seconds_sum", (cause,)] == 70.5
    assert "# TYPE tenure_pickup_seconds histogram" in text
    assert "# HELP tenure_grants_total granted tasks" in text
    assert ("process_resident_memory_bytes", ()) in read_back


async def test_the_endpoint_answers_while_the_event_loop_is_busy() -> None:
    async with metrics_endpoint(ANY_PORT, MetricRegistry()) as address:
        answers: list[str] = []
        reader = threading.Thread(target=lambda: answers.append(read(address)))
        reader.start()
        end = time.monotonic() + 30
        while not answers and time.monotonic() < end:
            time.sleep(0.01)
        reader.join()
    assert answers


async def test_idle_connections_are_closed() -> None:
    async with metrics_endpoint(ANY_PORT, MetricRegistry()) as address:
        host, _, port = address.rpartition(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(20)]
        await asyncio.sleep(0.2)
        for connection in idle:
            connection.close()
        async with asyncio.timeout(30):
            while True:
                try:
                    await asyncio.to_thread(read, address)
                    break
                except OSError:
                    await asyncio.sleep(0.05)


async def test_a_taken_port_is_named() -> None:
    async with metrics_endpoint(ANY_PORT, MetricRegistry()) as address:
        with pytest.raises(OSError, match=address):
            async with metrics_endpoint(Address(address), MetricRegistry()):
                pass


async def test_the_delay_of_the_event_loop_is_sampled(registry: MetricRegistry) -> None:
    gauge: list[float] = []
    with registry.on_sample(lambda: 1 / 0), registry.on_sample(lambda: gauge.append(1.0)):  # type: ignore[arg-type]
        async with sampling(0.01):
            await asyncio.sleep(0.1)
    assert gauge, "a sampler that fails does not stop the next one"
    assert metrics.read("tenure_event_loop_delay_seconds") >= 1


def test_the_first_names_stand_for_themselves() -> None:
    named = BoundedNames(2)
    assert [named(name) for name in ("a", "b", "c", "a", "b", "c")] == ["a", "b", OTHERS, "a", "b", OTHERS]


def of_tenant(tenant: str) -> Announcement:
    move = Move(TaskState.QUEUED, Reason.SUBMITTED, TaskState.RUNNING, Reason.OPENED, tenant, 0.5)
    end = Move(TaskState.RUNNING, Reason.OPENED, TaskState.SUCCEEDED, Reason.FINAL_ANSWER, tenant, None)
    usage = TokenUsage(input_tokens=10, output_tokens=5)
    bill = BillRow("task", 1, 1, tenant, "task", 7, f"model-of-{tenant}", "", False, 2_000_000_000, False, usage)
    return Announcement(moves=[move, end], bills=[bill])


@pytest.mark.parametrize("named", [0, 5, 50])
def test_the_traffic_of_200_tenants_has_few_series(registry: MetricRegistry, named: int) -> None:
    metrics.name_tenants(named)
    for number in range(200):
        count_announced(of_tenant(f"tenant-{number}"))
    for name in ("tenure_tenant_tokens_total", "tenure_tenant_cost_usd_total", "tenure_tenant_tasks_ended_total"):
        assert len(registry.cells(name)) == named + 1
    assert len(registry.cells("tenure_model_cost_usd_total")) == 50 + 1
    assert registry.read("tenure_tenant_tokens_total") == 200 * 15
    assert registry.read("tenure_tenant_cost_usd_total", tenant=OTHERS) == 2.0 * (200 - named)
    assert sum(len(registry.cells(name)) + len(registry.histograms(name)) for name in registry.names()) < 1000


def test_a_pickup_is_measured_by_its_cause(registry: MetricRegistry) -> None:
    lost = Move(TaskState.QUEUED, Reason.WORKER_LOST, TaskState.RUNNING, Reason.OPENED, "t", 0.4)
    count_announced(Announcement(moves=[lost]))
    assert registry.read("tenure_pickup_seconds", cause="TAKEOVER") == 1
    assert [pickup_cause(reason) for reason in (Reason.SUBMITTED, Reason.RETRY_DUE)] == ["NEW", "RESUMED"]


def test_an_end_at_a_limit_is_counted_with_its_reason(registry: MetricRegistry) -> None:
    for reason in (Reason.MONEY_LIMIT, Reason.MONEY_LIMIT, "a reason of a newer version"):
        ended: Any = Move(TaskState.RUNNING, Reason.OPENED, TaskState.COST_EXCEEDED, reason, "t", None)
        count_announced(Announcement(moves=[ended]))
    assert registry.read("tenure_budget_stops_total", reason=Reason.MONEY_LIMIT) == 2
    assert registry.read("tenure_budget_stops_total", reason="OTHER") == 1


def test_each_replica_counts_its_own_transitions() -> None:
    announcement = of_tenant("t")
    assert (announcement.without_entries().moves, announcement.without_entries().bills) == ([], [])


async def serve_metrics(listen: str, name: str = "gateway", **common: Any) -> None:
    process = Process()
    settings = SimpleNamespace(metrics_listen=Address(listen), common=CommonSettings(**common))
    try:
        await service.serve_metrics(process, name, settings)
    finally:
        await process.close()


async def test_an_address_that_other_machines_reach_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"TENURE_GATEWAY_METRICS_LISTEN.*TENURE_METRICS_ALLOW_NETWORK=true"):
        await serve_metrics("0.0.0.0:0")
    await serve_metrics("0.0.0.0:0", metrics_allow_network=True)
    await serve_metrics("127.0.0.1:0")


async def test_counters_without_labels_begin_at_zero() -> None:
    await serve_metrics("127.0.0.1:0", "tools")
    plain = [each for each in CATALOGUE.values() if each.kind == "counter" and not each.labels]
    names = {each.name for each in plain if "tools" in each.services}
    assert "tenure_runner_lapses_total" in names
    assert {name for name in names if not metrics.REGISTRY.cells(name)} == set()
