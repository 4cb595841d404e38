"""The comparison with other engines: its ratios, its page and its plot."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.cpu import AVAILABLE
from bench.machine import Machine
from bench.options import Size
from bench.peers.__main__ import write
from bench.peers.faults import Balancer, is_frozen
from bench.peers.page import Run, page, span, step_sentences
from bench.peers.peers import PEERS, TENURE_SETTINGS, Setting
from bench.peers.plot import panels, svg
from bench.peers.program import Effect, EngineFailedError, read_effects, read_victim, step_seconds
from bench.peers.programs.agent import STEPS
from bench.peers.results import ALONE, AT_ONCE, TENURE, Result, Sample, as_json, ratios
from bench.peers.rounds import task_count

MACHINE = Machine(cores=2, system="Linux", python="3.11.7", postgres="18.6", etcd="3.5.1", sync_ms=0.1, load=0.25)


ROOT = Path(__file__).parents[2]
WORKER = """
import threading, time
from bench.peers.programs import agent

def busy():
    while True: time.sleep(0)

for _ in range(4): threading.Thread(target=busy, daemon=True).start()
tool = agent.Tool(agent.read_options())
input()
threading.Thread(target=lambda: [tool.effect("task", step) for step in range(1, 11)]).start()
time.sleep(60)
"""


def sample(at_once: int, rate: float, p50_ms: float) -> Sample:
    return Sample(at_once, 100, 100 / rate, [p50_ms / 1000] * 100, {"worker": 0.03, "Postgres": 0.02}, 400_000)


def result(name: str, rates: list[float], alone_ms: float, repeated: list[int]) -> Result:
    settings = [Setting("durability", "on", "https://example.org/durability")]
    made = Result(name, name.title(), "1.2.3", "Postgres", "the engine", settings, repeated=repeated, takeovers=[0.5])
    made.samples = [one for rate in rates for one in (sample(ALONE, 100, alone_ms), sample(AT_ONCE, rate, 20))]
    return made


@pytest.fixture
def results() -> list[Result]:
    return [
        result(TENURE, [1000.0, 400.0, 500.0], 4.0, [0, 0]),
        result("quick", [500.0, 200.0, 250.0], 2.0, [1, 6]),
        result("slow", [100.0, 100.0, 100.0], 40.0, [1]),
    ]


@pytest.fixture
def run(results: list[Result]) -> Run:
    return Run(MACHINE, "2026-11-25", Size.FULL, 720.0, results, [])


def test_a_ratio_compares_within_a_round(results: list[Result]) -> None:
    tenure, quick, slow = results
    assert ratios(quick, tenure, AT_ONCE).rate == 0.5
    assert ratios(quick, tenure, ALONE).p50 == 0.5
    assert ratios(slow, tenure, AT_ONCE).rate == pytest.approx(0.2), "the median of 0.1, 0.25 and 0.2"
    assert ratios(tenure, tenure, AT_ONCE).rate == 1


def test_a_sample_counts_all_processes_a_step() -> None:
    measured = sample(AT_ONCE, 200.0, 5.0)
    assert measured.rate == pytest.approx(200)
    assert measured.cpu_us == pytest.approx(500)
    assert measured.step_bytes == 4000


def test_a_step_takes_until_the_next_effect_of_its_task() -> None:
    effects = [
        Effect(task, step, 1, step + shift) for step in range(1, STEPS + 1) for task, shift in (("a", 0), ("b", 5))
    ]
    assert step_seconds(effects, ["a", "b"]) == [1.0] * 2 * (STEPS - 1)
    assert step_seconds(effects, ["b"]) == [1.0] * (STEPS - 1)


def test_a_task_without_all_effects_is_no_sample() -> None:
    effects = [Effect("a", step, 1, float(step)) for step in range(1, STEPS)]
    with pytest.raises(EngineFailedError, match="1 of 1 tasks did not make 10 effects"):
        step_seconds(effects, ["a"])


def test_the_tasks_of_a_round_are_whole_sets() -> None:
    assert task_count(rate=1000.0, seconds=5.0, at_once=32) == 16 * 32
    assert task_count(rate=1.0, seconds=0.2, at_once=32) == 32


def test_the_ratios_stand_in_sentences(results: list[Result]) -> None:
    at_once, alone = step_sentences(results[0], results[1:])
    assert "Tenure makes 2.00 times the steps/s of Quick, the fastest peer" in at_once
    assert "Quick 2.00, Slow 5.00" in at_once
    assert "takes 2.00 times as long as one of Quick, the quickest peer" in alone
    assert "Slow 0.10, Quick 2.00" in alone


def test_the_page_has_every_engine_and_setting(run: Run) -> None:
    text = page(run)
    assert "| Quick | 250 (200 to 500) | 0.50 | 2.00 / 2.00 ms | 0.50 |" in text
    assert "| Quick | 1 to 6 | 0.50 s | the engine |" in text
    assert text.count("<https://example.org/durability>") == 3
    assert "Hatchet is not compared" in text
    assert "do not publish" not in text


def test_the_page_is_wrapped_like_the_others(run: Run) -> None:
    long = [line for line in page(run).splitlines() if len(line) > 100 and not line.startswith("|")]
    assert long == []


def test_a_short_run_says_that_it_is_not_to_be_published(results: list[Result]) -> None:
    text = page(Run(MACHINE, "2026-11-25", Size.SMOKE, 60.0, results, []))
    assert "only of the size smoke: do not publish its figures" in text


def test_the_plot_is_drawn_to_scale(results: list[Result]) -> None:
    drawn = ET.fromstring(svg(results))
    bars = [float(bar.get("width", "0")) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert len(bars) == 4 * len(results)
    assert bars[1] / bars[0] == pytest.approx(0.5, abs=0.01), "Quick has half the rate of Tenure"
    assert panels(results)[2].bars[1].shown == "6"


def test_programs_get_the_ratios_and_the_sources(results: list[Result]) -> None:
    tenure, quick, _ = json.loads(json.dumps(as_json(results)))
    loads = {load["at_once"]: load for load in quick["loads"]}
    assert loads[AT_ONCE]["ratios_to_tenure"]["steps_per_second"] == 0.5
    assert loads[ALONE]["step_p50_ms"] == 2.0
    assert quick["effects_repeated_by_a_zombie"] == [1, 6]
    assert tenure["loads"][0]["cpu_us_per_step_by_process"] == {"worker": 300.0, "Postgres": 200.0}


def test_a_failed_engine_has_no_ratios(results: list[Result]) -> None:
    results[1].error = "it ended"
    _, quick, slow = as_json(results)
    assert "ratios_to_tenure" not in quick["loads"][0]
    assert "ratios_to_tenure" in slow["loads"][0]


def test_three_files_are_written(run: Run, tmp_path: Path) -> None:
    write(run, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peers.json", "peers.md", "peers.svg"]
    assert "peers.svg" in (tmp_path / "peers.md").read_text()


def test_each_setting_has_a_page_that_documents_it() -> None:
    root = Path(__file__).parents[2]
    for one in [*TENURE_SETTINGS, *(setting for peer in PEERS for setting in peer.settings)]:
        assert one.source.startswith("https://") or (root / one.source).exists(), one


def test_each_package_is_pinned() -> None:
    for package in (package for peer in PEERS for package in peer.packages):
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z,]+\])?==[0-9.]+", package), package


@pytest.mark.parametrize(
    ("values", "shown"), [([0, 0], "0"), ([1, 2], "1 to 2"), ([0.5], "0.50"), ([1.5, 2.0], "1.50 to 2.00")]
)
def test_a_span_shows_the_lowest_and_the_highest(values: list[float], shown: str) -> None:
    assert span(values) == shown


@pytest.fixture(params=["freeze", "kill"])
def stopped_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of a peer with other busy threads, after its fault."""
    command = [sys.executable, "-c", WORKER, "--store", "none", "--folder", str(tmp_path), "--fault", request.param]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)
    assert worker.stdin is not None
    worker.stdin.write(b"\n")
    worker.stdin.flush()
    while read_victim(tmp_path) is None or not (worker.poll() is not None or is_frozen(worker.pid)):
        assert worker.poll() in {None, -signal.SIGKILL}
    yield worker
    worker.kill()
    worker.communicate()


@pytest.mark.skipif(not AVAILABLE, reason="this system has no /proc")
def test_a_fault_stops_the_worker_before_its_effect(stopped_worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert [effect.step for effect in read_effects(tmp_path)] == [1, 2, 3, 4]
    victim = read_victim(tmp_path)
    assert victim is not None
    assert victim.pid == stopped_worker.pid
    if stopped_worker.poll() is None:
        os.kill(stopped_worker.pid, signal.SIGCONT)
        while len(read_effects(tmp_path)) < STEPS:
            assert stopped_worker.poll() is None


async def test_a_balancer_parts_the_engine_from_a_stopped_worker() -> None:
    async def serve(name: bytes) -> asyncio.Server:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(name)
            await reader.read()
            writer.close()

        return await asyncio.start_server(greet, "127.0.0.1", 0)

    first, second = [await serve(name) for name in (b"first\n", b"second\n")]
    chosen = 0
    balancer = Balancer([server.sockets[0].getsockname()[1] for server in (first, second)], lambda: chosen)
    async with asyncio.timeout(60), balancer.serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readline() == b"first\n"
        chosen = 1
        balancer.close_connections()
        assert await reader.read() == b"", "its connection is closed"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readline() == b"second\n"
        writer.close()
    for server in (first, second):
        server.close()
        await server.wait_closed()
