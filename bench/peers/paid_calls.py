"""`python -m bench.peers.paid_calls --environment FOLDER [--quick | --smoke]`: model calls that Temporal pays twice.

The same agents, answers and faults of workers as `python -m bench model_calls`, with each model call an activity that
sends heartbeats. The counts are those of the model simulator.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.model_calls import PAUSE_SECONDS, WORKERS, ProviderRecord, recorded_calls
from bench.options import Options, Size
from bench.peers.environment import Environment, NotInstalledError
from bench.peers.peers import TEMPORAL
from bench.peers.program import EngineFailedError
from bench.peers.programs.agent import SAYS
from bench.peers.stores import temporal_server
from bench.streamed_agents import STEPS, WorkerFaults, write_scenario
from devstack.child_process import ChildProcess
from devstack.simulator.simulator import ModelSimulator

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = "bench.peers.programs.temporal_calls"
HEARTBEAT_SECONDS: Final = 5
"""As Tenure's leases in the other measurement."""


class TemporalWorker(ChildProcess):
    """A worker of Temporal. It serves as soon as it says so."""

    async def serves(self) -> bool:
        return f"{SAYS}ready" in self.log()


def main() -> int:
    """Returns the exit code: 1 if Temporal cannot be installed or does not run."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="tenure-paid-calls-"))
    size = Size.SMOKE if arguments.smoke else Size.QUICK if arguments.quick else Size.FULL
    options = Options(folder, size, lambda text: print(f"… {text}", file=sys.stderr, flush=True))
    environment = Environment(arguments.environment.resolve())
    try:
        environment.install(TEMPORAL, options.tell)
        record, faults = asyncio.run(measure(environment, options))
    except (NotInstalledError, EngineFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"faults: {faults}")
    print(f"model requests that the provider received: {record.requests:,}")
    print(f"of these repeated: {record.repeated:,}")
    print(f"of these broken off by the client: {record.left:,}")
    print(f"tokens that the provider billed: {record.billed:,}")
    return 0


async def measure(environment: Environment, options: Options) -> tuple[ProviderRecord, str]:
    """Returns what the provider received, and the faults."""
    at_once = options.choose(smoke=2, quick=20, full=50)
    seconds = options.choose(smoke=6.0, quick=90.0, full=600.0)
    scenario = write_scenario(options.folder, options.choose(smoke=1.0, quick=5.0, full=5.0), calls_tool=False)
    log, data = options.folder / "model-calls.jsonl", options.folder / "store"
    data.mkdir()
    simulator = ModelSimulator(scenario_files=(scenario,), log_path=log)
    async with simulator, temporal_server(environment, data) as store:
        common = ["--store", store.where, "--url", simulator.url, "--model", f"sim-{scenario.stem}"]
        common += ["--at-once", str(at_once)]
        workers = [_worker(environment, options.folder, number, common) for number in range(1, WORKERS + 1)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                await worker.wait_ready()
            faults = WorkerFaults(workers, options.choose(smoke=1.0, quick=PAUSE_SECONDS, full=PAUSE_SECONDS))
            async with faults.running(seconds):
                await _submit(environment, options.folder, [*common, "--seconds", str(seconds), "--steps", str(STEPS)])
        finally:
            for worker in workers:
                worker.kill()
    return ProviderRecord.of(recorded_calls(log)), faults.summary


def _worker(environment: Environment, folder: Path, number: int, arguments: Sequence[str]) -> TemporalWorker:
    name = f"worker-{number}"
    command = [str(environment.python), "-m", PROGRAM, *arguments]
    variables = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    return TemporalWorker(name, command, "127.0.0.1:0", variables, folder / f"{name}.log")


async def _submit(environment: Environment, folder: Path, arguments: Sequence[str]) -> None:
    """Runs the workflows to their ends. Raises EngineFailedError."""
    heartbeat = ["--heartbeat-seconds", str(HEARTBEAT_SECONDS)]
    process = await asyncio.create_subprocess_exec(
        *(str(environment.python), "-m", PROGRAM, *arguments, *heartbeat),
        cwd=ROOT,
        env={"PATH": os.environ.get("PATH", ""), "HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise EngineFailedError(f"The client of Temporal failed: {errors.decode(errors='replace')[-2000:]}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.paid_calls", description=__doc__)
    parser.add_argument("--environment", type=Path, required=True, help="the environment of `make bench-peers`")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="20 agents for 90 s instead of 50 for ten minutes")
    sizes.add_argument("--smoke", action="store_true", help="only check that it runs; the figures mean nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
