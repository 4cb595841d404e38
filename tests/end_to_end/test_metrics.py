"""A whole installation and its numbers: what dashboards and alerts name is there, and every command of a page runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from devstack import Stack
from devstack.options import choose_address
from devstack.service_process import ServiceProcess
from tenure.client import Client
from tenure.runtime.observability.metric_catalogue import ALL, CATALOGUE
from tenure.v1 import task_pb2
from tests.end_to_end.command import tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.support.monitoring import PROMETHEUS, ROOT, TARGET_LABELS, alerts, base_name, expressions, recorded, rules
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

TENANTS = 200
NAMED_TENANTS = 20
PAGES = sorted((ROOT / "docs" / "operations").glob("*.md")) + [
    ROOT / "docs" / name for name in ("metrics.md", "logs.md")
]
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = dict(zip(("9470", "9471", "9472", "9473", "9474", "9476"), ALL, strict=True))
NOTHING_FOUND = 1
"""The exit code of grep without a match, which is an answer too."""
TOOLS = {"mcp_servers": {"away": {"url": "http://127.0.0.1:9/mcp"}}}
PROMETHEUS_READS = 3
GOAL = "a goal that no log has"


class Traffic:
    """An installation after a bit of everything."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.stack = installation.stack
        self.task_id = self.restarted = ""

    async def happen(self) -> None:
        install = self.installation
        made = await tenure("webhooks", "create", "nowhere", "http://127.0.0.1:9/", address=self.stack.gateway_address)
        assert made.code == 0, made.err
        paced = await install.submit("sim-e2e-paced", "metrics")
        await install.until(paced, "tool_intent", lambda entry: entry.step == 2)
        lost = install.owner(await install.client.get(paced))
        lost.kill()
        self.restarted = lost.name
        self.task_id = await install.submit("sim-one-tool", GOAL)
        await install.ended(self.task_id)
        await install.ended(await install.submit("sim-error-429"))
        await install.ended(await install.submit("sim-one-tool", limits=task_pb2.Limits(max_tokens=300)))
        await self._many_tenants()
        await self._near_quota()
        assert (await install.ended(paced)).state == task_pb2.TASK_STATE_SUCCEEDED
        await lost.restart()

    async def _near_quota(self) -> None:
        """A task uses the tenant's quota up, and the next submit warns of it."""
        limits = ("tenants", "limit", "near", "--tokens-per-hour", "100", "--reason", "a test")
        assert (await tenure(*limits, address=self.stack.gateway_address)).code == 0
        async with Client(self.stack.gateway_address, tenant="near") as client:
            own = Installation(self.stack, client)
            await own.ended(await own.submit("sim-hello"))
            await client.cancel(await own.submit("sim-hello"))
        ledger = next(each for each in self.stack.services.values() if each.kind == "checkpoint")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "tenure_tenant_quota_used_ratio{" not in await asyncio.to_thread(read, ledger.metrics_address):
                await asyncio.sleep(0.5)

    async def _many_tenants(self) -> None:
        gate = asyncio.Semaphore(20)

        async def one(number: int) -> None:
            async with gate, Client(self.stack.gateway_address, tenant=f"tenant-{number}") as client:
                model = "sim-hello" if number % 2 else "sim-echo"
                own = Installation(self.stack, client)
                await own.ended(await own.submit(model))

        await asyncio.gather(*(one(number) for number in range(TENANTS)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traffic(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traffic]:
    folder = tmp_path_factory.mktemp("metrics")
    tools = folder / "tools.yaml"
    tools.write_text(yaml.safe_dump(TOOLS))
    environment = {
        "*": {"TENURE_METRICS_TENANTS": str(NAMED_TENANTS)},
        "checkpoint": {"TENURE_CHECKPOINT_STANDBY_DSN": "postgresql://127.0.0.1:9/away"},
    }
    chosen = options(folder, workers=2, metrics=True, tools_config=tools, environment=environment)
    chosen = replace(chosen, data_dir=folder / ".tenure", model_runner=True)
    async with Stack(chosen) as stack, Client(stack.gateway_address) as client:
        traffic = Traffic(Installation(stack, client))
        await traffic.happen()
        yield traffic


def read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
        return text


class Scraped:
    """What all processes of an installation say: for each series its label sets."""

    def __init__(self) -> None:
        self.series: dict[str, list[dict[str, str]]] = {}
        self.count: dict[str, int] = {}

    def add(self, service: ServiceProcess, text: str) -> None:
        targets = {"job": "tenure", "instance": service.metrics_address}
        targets |= {"component": service.kind, "process": service.name}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.series.setdefault(sample.name, []).append({**targets, **sample.labels})
                self.count[service.name] = self.count.get(service.name, 0) + 1


async def scrape(stack: Stack) -> Scraped:
    scraped = Scraped()
    for service in stack.services.values():
        scraped.add(service, await asyncio.to_thread(read, service.metrics_address))
    return scraped


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_metrics_of_dashboards_and_alerts_exist(traffic: Traffic) -> None:
    scraped = await scrape(traffic.stack)
    wrong = []
    for each in expressions():
        for selector in each.named.selectors:
            if selector.name == "up" or selector.name in recorded():
                continue
            series = scraped.series.get(selector.name)
            if series is None:
                wrong.append(f"{each.where}: no process has {selector.name}")
                continue
            labels = set().union(*series)
            asked = {label for label, _, _ in selector.matchers}
            wrong += [f"{each.where}: {selector.name} has no label {label}" for label in asked - labels]
            described = CATALOGUE.get(base_name(selector.name))
            words = " ".join(described.labels.values()) if described else ""
            wrong += [
                f"{each.where}: nothing is said of {selector.name}{{{label}={value}}}"
                for label, value in selector.equalities()
                if label not in TARGET_LABELS | {"le", "grpc_code"}
                and value not in {one.get(label) for one in series}
                and not re.search(rf"\b{re.escape(value)}\b", words)
                and label not in {"state", "reason", "status", "outcome"}
            ]
            bounds = {value for label, value in selector.equalities() if label == "le"}
            known = {one.get("le") for one in series}
            wrong += [f"{each.where}: no bucket ends at {bound}" for bound in bounds - known]
    assert wrong == []


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_every_process_reports_only_what_is_described(traffic: Traffic) -> None:
    for service in traffic.stack.services.values():
        text = await asyncio.to_thread(read, service.metrics_address)
        for family in text_string_to_metric_families(text):
            if family.name.startswith(("process_", "python_")):
                continue
            name = family.name if family.name in CATALOGUE else f"{family.name}_total"
            if service.kind not in CATALOGUE[name].services:  # forked from a process that had imported all services
                assert {sample.value for sample in family.samples} == {0}, f"{service.name} reports {name}"
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == CATALOGUE[name].labels.keys(), name


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_the_numbers_are_those_of_the_traffic(traffic: Traffic) -> None:
    sums: dict[tuple[str, str], float] = {}
    for service in traffic.stack.services.values():
        for family in text_string_to_metric_families(await asyncio.to_thread(read, service.metrics_address)):
            for sample in family.samples:
                for label in ("cause", "state", "reason", "outcome", "source"):
                    if label in sample.labels:
                        key = sample.name, sample.labels[label]
                        sums[key] = sums.get(key, 0) + sample.value
    assert sums["tenure_pickup_seconds_count", "NEW"] >= TENANTS + 4
    assert sums["tenure_pickup_seconds_count", "TAKEOVER"] == 1
    assert sums["tenure_loss_detection_seconds_count", "WORKER_LOST"] == 1
    assert sums["tenure_tenant_tasks_ended_total", "SUCCEEDED"] >= TENANTS
    assert sums["tenure_budget_stops_total", "TOKEN_LIMIT"] == 1
    assert sums["tenure_model_calls_total", "RATE_LIMITED"] == 2
    assert sums["tenure_tool_calls_total", "built-in"] >= 2
    assert sums["tenure_webhook_attempts_total", "failed"] >= 1


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_logs_show_the_way_of_a_task_and_no_content(traffic: Traffic) -> None:
    texts = {name: service.log() for name, service in traffic.stack.services.items()}
    assert [name for name, text in texts.items() if GOAL in text] == []
    lines = [json.loads(line) for text in texts.values() for line in text.splitlines() if line.startswith("{")]
    own = [line for line in lines if line.get("task") == traffic.task_id]
    assert {"gateway", "coordinator", "worker"} <= {line["service"] for line in own}
    for line in own:
        if line["service"] == "worker":
            assert line["epoch"]
            assert line["claim"]
    requests = [line for line in lines if line["logger"] == "tenure.requests"]
    submits = [line for line in requests if line["method"].endswith("/SubmitTask")]
    assert {line["tenant"] for line in submits} >= {"default", *(f"tenant-{number}" for number in range(TENANTS))}
    assert all(line["code"] == "OK" and line["seconds"] >= 0 for line in submits)
    assert {line["service"] for line in requests if line["level"] == "INFO"} == {"gateway"}


def commands_of(page: Path) -> list[str]:
    found = [line for block in SHELL.findall(page.read_text(encoding="utf-8")) for line in block.splitlines()]
    return [line for line in found if line.strip() and not line.startswith("prometheus ")]


def on_this_stack(line: str, traffic: Traffic) -> str:
    """The command for this installation: its ports, and names for the words in capitals."""
    services = {
        service.kind: service.metrics_address
        for service in traffic.stack.services.values()
        if service.name != traffic.restarted  # its numbers began anew
    }
    line = re.sub(r"127\.0\.0\.1:(947\d)", lambda found: services[PORTS[found[1]]], line)
    for word, value in {"TASK": traffic.task_id, "WEBHOOK": "nowhere", "SOURCE": "away"}.items():
        line = re.sub(rf"\b{word}\b", value, line)
    return line


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_every_command_of_a_page_runs(traffic: Traffic, tmp_path: Path) -> None:
    """In the folder in which the stack has its data, as in a shell."""
    program = tmp_path / "tenure"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tenure.cli "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    gate, failed = asyncio.Semaphore(4), []

    async def run(page: str, line: str) -> None:
        command = on_this_stack(line, traffic)
        async with gate, asyncio.timeout(PATIENCE_SECONDS):
            process = await asyncio.create_subprocess_exec(
                *("bash", "-o", "pipefail", "-c", command),
                cwd=traffic.stack.layout.data_dir.parent,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
        searches = any(part.lstrip().startswith("grep ") for part in command.split("|"))
        missing = searches and process.returncode == NOTHING_FOUND
        if process.returncode and not missing:
            failed.append(f"{page}: {line}: exit code {process.returncode}: {said.decode()[-300:]}")

    lines = {(page.name, line) for page in PAGES for line in commands_of(page)}
    assert len(lines) > 80
    await asyncio.gather(*(run(page, line) for page, line in sorted(lines)))
    assert failed == []


class PrometheusServer:
    """A real Prometheus that reads the installation by the list of targets that `tenure dev` writes."""

    def __init__(self, program: str, folder: Path, stack: Stack) -> None:
        self._program, self._folder, self._stack = program, folder, stack
        self.address = choose_address("prometheus", usual=False)

    async def __aenter__(self) -> Self:
        for file in ("rules.yml", "alerts.yml"):
            text = (PROMETHEUS / file).read_text(encoding="utf-8")
            (self._folder / file).write_text(re.sub(r"interval: \d+[sm]", "interval: 1s", text), encoding="utf-8")
        config = yaml.safe_load((PROMETHEUS / "dev.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"}
        config["scrape_configs"][0]["file_sd_configs"] = [{"files": [str(self._stack.layout.metrics_targets)]}]
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.address}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def ask(self, path: str, **parameters: str) -> Any:
        url = f"http://{self.address}{path}?{urllib.parse.urlencode(parameters)}"

        def fetch() -> Any:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]

        return await asyncio.to_thread(fetch)

    async def until_known(self, query: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await self.ask("/api/v1/query", query=query))["result"]:
                await asyncio.sleep(0.5)

    async def until_scraped(self, count: int) -> None:
        """Returns when so many processes were read PROMETHEUS_READS times."""
        query = f"count(sum_over_time(up[10m]) >= {PROMETHEUS_READS}) >= {count}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(OSError):  # it starts
                    found = await self.ask("/api/v1/query", query=query)
                    if found["result"]:
                        return
                await asyncio.sleep(0.5)


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_prometheus_answers_every_expression(traffic: Traffic, tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: on Debian it is in the package of that name")
    services = traffic.stack.services
    async with PrometheusServer(program, tmp_path, traffic.stack) as prometheus:
        await prometheus.until_scraped(len(services))
        # The newest scrape of one may have taken too long, on a busy machine.
        up = await prometheus.ask("/api/v1/query", query='max_over_time(up{job="tenure"}[10m])')
        assert {one["metric"]["process"]: one["value"][1] for one in up["result"]} == dict.fromkeys(services, "1")
        assert {one["metric"]["component"] for one in up["result"]} == set(ALL)
        for each in expressions():
            text = each.text.replace("$__rate_interval", "1m")
            await prometheus.ask("/api/v1/query", query=text)  # raises for an error
        for name in recorded():
            if name != "tenure:model_failures:ratio_rate10m":  # without a call in the last minutes it has no value
                await prometheus.until_known(name)
        loaded = await prometheus.ask("/api/v1/rules")
        states = [rule["health"] for group in loaded["groups"] for rule in group["rules"]]
        assert len(states) == len(rules("rules.yml")) + len(alerts())
        assert set(states) <= {"ok", "unknown"}
