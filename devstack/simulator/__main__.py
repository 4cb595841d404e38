"""`python -m devstack.simulator`: the simulator as a process. It prints its address when it listens."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import fields
from pathlib import Path

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from devstack.simulator.rate_limits import RateLimits
    from devstack.simulator.scenario import ScenarioError
    from devstack.simulator.simulator import ModelSimulator
    from tenure.runtime.process import allow_many_open_files


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tenure serve simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 (the default) takes a free one")
    parser.add_argument("--scenarios", type=Path, action="append", default=[], help="a directory of scenario files")
    parser.add_argument("--scenario", type=Path, action="append", default=[], help="one more scenario file")
    parser.add_argument("--log", type=Path, help="append one line of JSON per call to this file")
    parser.add_argument("--latency-ms", type=int, default=0, help="latency of turns without a latency of their own")
    parser.add_argument("--no-count-tokens", action="store_true", help="do not serve /v1/messages/count_tokens")
    for limit in fields(RateLimits):
        text = f"the rate limit of each key and model: {limit.name.replace('_', ' ')}; 0 (the default): none"
        parser.add_argument(f"--{limit.name.replace('_', '-')}", type=int, default=0, help=text)
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace, kind: type[ModelSimulator]) -> None:
    stopping = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stopping.set)
    simulator = kind(
        scenarios=arguments.scenarios,
        scenario_files=arguments.scenario,
        log_path=arguments.log,
        latency_ms=arguments.latency_ms,
        counts_tokens=not arguments.no_count_tokens,
        rate_limits=RateLimits(**{limit.name: getattr(arguments, limit.name) for limit in fields(RateLimits)}),
        host=arguments.host,
        port=arguments.port,
    )
    async with simulator:
        sys.stdout.write(f"model simulator on {simulator.url}\n")
        sys.stdout.flush()
        await stopping.wait()


def main(kind: type[ModelSimulator] = ModelSimulator) -> int:
    """Runs a simulator of this kind until a signal."""
    allow_many_open_files()
    try:
        asyncio.run(_serve(_arguments(), kind))
    except (ScenarioError, OSError) as error:
        sys.stderr.write(f"model simulator: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
