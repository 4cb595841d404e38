"""Processes of a stack on hosts of their own: whom they reach can be cut off, line by line.

worker = await placed_worker(bench, network)           # another worker of the bench, with lines to all it dials
worker.host.cut("coordinator")
replica = await placed_service(bench, network, "checkpoint")    # another replica, over the same stores
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from devstack.options import choose_address
from devstack.service_process import ServiceProcess
from tenure.domain import entries as facts
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.wire.common import state_name
from tests.support.fix_network import Host, Network
from tests.support.fix_worker import WorkerBench
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

LINES = {
    "ETCD_ENDPOINTS": "etcd",
    "POSTGRES_DSN": "postgres",
    "CHECKPOINT_ADDRESS": "checkpoint",
    "TOOLS_ADDRESS": "tools",
    "COORDINATOR_ADDRESS": "coordinator",
    "ANTHROPIC_BASE_URL": "anthropic",
    "OPENAI_BASE_URL": "openai",
}
"""By the end of a variable's name: what the line is called that it leads over. Several addresses: `coordinator-2` …"""

STEADY_STEPS = 30
"""Of `sim-worker-steady`, each with one call."""

_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


@dataclass(frozen=True)
class Placed:
    """A process, and the host it runs on."""

    process: ServiceProcess
    host: Host

    @property
    def address(self) -> str:
        """Returns the address at which others reach it."""
        return self.process.address


class PlacedProcess(ServiceProcess):
    """A service whose address is that of a relay into its host."""

    @property
    def listens(self) -> bool:
        return self.exit_code is None


async def placed_worker(
    bench: WorkerBench, network: Network, *, failpoints: str = "", model_silence_seconds: float = 60, **addresses: str
) -> Placed:
    """A worker that takes the test's tasks. `addresses` where it is to dial others than the stack's services."""
    services = bench.stack.services
    environment = {
        "TENURE_WORKER_QUEUES": bench.queue,
        "TENURE_WORKER_COORDINATOR_ADDRESS": addresses.get("coordinator", services["coordinator"].address),
        "TENURE_WORKER_CHECKPOINT_ADDRESS": addresses.get("checkpoint", services["checkpoint"].address),
        "TENURE_WORKER_TOOLS_ADDRESS": addresses.get("tools", services["tools"].address),
        "TENURE_FAILPOINTS": failpoints,
        "ANTHROPIC_API_KEY": "sk-test",
        "TENURE_WORKER_MODEL_SILENCE_SECONDS": f"{model_silence_seconds:g}",
        "ANTHROPIC_BASE_URL": bench.simulator.url,
        "OPENAI_BASE_URL": f"{bench.simulator.url}/v1",
    }
    return await _start_in_network(bench, network, "worker", environment)


async def placed_service(bench: WorkerBench, network: Network, kind: str, **settings: str) -> Placed:
    """One more replica of a service of the stack."""
    extra = {f"TENURE_{kind.upper()}_{name.upper()}": value for name, value in settings.items()}
    environment, dsn = dict(bench.stack.services[kind].environment), f"TENURE_{kind.upper()}_POSTGRES_DSN"
    if environment.pop(f"{dsn}_FILE", ""):  # the file has the address without the relay
        environment[dsn] = bench.stack.postgres_dsn
    return await _start_in_network(bench, network, kind, {**environment, **extra})


async def _start_in_network(bench: WorkerBench, network: Network, kind: str, environment: Mapping[str, str]) -> Placed:
    host, name = network.host(), f"{kind}-{uuid.uuid4().hex[:6]}"
    inside = choose_address(name, usual=False)
    address = await host.serve(int(inside.rpartition(":")[2]))
    # The cables of a namespace are another network, which these processes cross without TLS.
    own = {
        f"TENURE_{kind.upper()}_LISTEN": inside,
        "TENURE_LOG_FORMAT": "json",
        "TENURE_ALLOW_INSECURE_NETWORK": "true",
    }
    if kind == "worker":
        own |= {
            "TENURE_WORKER_ID": name,
            "TENURE_WORKER_ADVERTISE": address,
            "TENURE_ALLOW_INSECURE_MODELS": "true",
        }
    if kind == "coordinator":
        own |= {"TENURE_COORDINATOR_ID": name}
    log_path = bench.stack.layout.logs / f"{name}.log"
    process = PlacedProcess(name, f"services.{kind}", address, {**await _over(host, environment), **own}, log_path)
    process.command = host.command(process.command)
    process.start()
    bench.workers.append(process)  # ended with the others, at the end of the test
    await process.wait_ready()
    return Placed(process, host)


async def _over(host: Host, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the addresses at which this host reaches them."""
    changed = dict(environment)
    for variable, value in environment.items():
        line = next((line for end, line in LINES.items() if variable.endswith(end)), None)
        if line is None:
            continue
        for number, address in enumerate(_ADDRESS.findall(value), start=1):
            there = await host.reach(line if number == 1 else f"{line}-{number}", address)
            changed[variable] = changed[variable].replace(address, there)
    return changed


async def logged(process: Any, words: str, times: int = 1) -> None:
    """Waits until the process has said so, so often."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while process.log().count(words) < times:
        assert time.monotonic() < ends_at, f"{process.name} never said {words!r}:\n{process.log_tail()}"
        await asyncio.sleep(0.05)


async def recorded(bench: Any, task_id: Any) -> Any:
    """The entries as they stand in the ledger, with the times of their writing."""
    request = tasks_pb.ListTaskEntriesRequest(task_id=task_id, page_size=1000)
    return (await bench.ledger.ListTaskEntries(request, timeout=CALL_SECONDS)).entries


def at(entry: Any) -> datetime:
    value: datetime = entry.record_time.ToDatetime(UTC)
    return value


def openings(entries: Any) -> Any:
    """The entries by which the task became RUNNING, in order."""
    return [one for one in entries if state_name(one.body.transition.to_state) == "RUNNING"]


async def check_whole(bench: Any, task_id: Any, steps: Any = STEADY_STEPS) -> None:
    """Asserts the rules of every cut: no gap, no step twice, epochs only grow, every call's effect there once."""
    entries = await bench.entries(task_id)
    assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
    answered = [entry.step for entry in entries if isinstance(entry.body, facts.AssistantMessage)]
    assert answered == list(range(1, steps + 2))
    epochs = [entry.epoch for entry in entries if entry.epoch]
    assert epochs == sorted(epochs)
    assert len(await bench.effects(task_id)) == steps


def model_calls(bench: Any, task_id: Any) -> list[datetime]:
    """Returns the times of the model calls."""
    return [datetime.fromisoformat(call["time"]) for call in bench.model_calls(task_id)]
