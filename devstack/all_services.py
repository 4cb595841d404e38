"""Runs all five services on this machine with the settings of the environment: `tenure serve all`.

Postgres and etcd run already, and the databases are migrated. All processes get the same environment, so the services
cannot have a certificate each: they call each other on the loopback interface, without TLS. If one service ends, the
others are stopped, and whoever started this process decides about a new start.

The gateway serves HTTP too, on 127.0.0.1:8480 unless TENURE_GATEWAY_HTTP_LISTEN is set; empty: no HTTP.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from typing import Final

from devstack import die_with_parent
from devstack.options import HOST, HTTP_LISTEN, USUAL_PORTS
from tenure.serve import SERVICES, command_line

DRAIN_SECONDS: Final = 60.0
_USAGE: Final = "usage: tenure serve all\n\n`tenure serve NAME --help` lists the settings of each service.\n"
_WRONG_COMMAND: Final = 2


def main() -> int:
    """Runs the services until one ends or a signal stops them, and returns the exit code."""
    if sys.argv[1:]:
        asks = sys.argv[1:] in (["--help"], ["-h"])
        (sys.stdout if asks else sys.stderr).write(_USAGE)
        return 0 if asks else _WRONG_COMMAND
    return asyncio.run(_run(os.environ))


async def _run(environment: Mapping[str, str]) -> int:
    environment = {HTTP_LISTEN: f"{HOST}:{USUAL_PORTS['gateway-http']}", **environment}
    if http := environment[HTTP_LISTEN]:
        sys.stderr.write(f"tenure: the gateway serves HTTP on {http}\n")
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    processes = {name: await _start(name, environment) for name in SERVICES}
    stopped = asyncio.create_task(stopping.wait(), name="stop")
    ends = {name: asyncio.create_task(process.wait(), name=name) for name, process in processes.items()}
    await asyncio.wait([stopped, *ends.values()], return_when=asyncio.FIRST_COMPLETED)
    ended = {name: task.result() for name, task in ends.items() if task.done()}
    for name, code in ended.items():
        if not stopping.is_set():
            sys.stderr.write(f"tenure: {name} ended with code {code}; the other services are stopped\n")
    stopped.cancel()
    await asyncio.gather(*(_drain(process) for process in processes.values()))
    codes = [process.returncode for process in processes.values()]
    return next((1 if code is None or code < 0 else code for code in [*ended.values(), *codes] if code), 0)


async def _start(name: str, environment: Mapping[str, str]) -> Process:
    return await asyncio.create_subprocess_exec(
        *die_with_parent.command(command_line(name)),
        stdin=asyncio.subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C in the terminal is for this process, which drains the services
    )


async def _drain(process: Process) -> None:
    """Sends SIGTERM and waits for the end. Kills a process that takes longer than DRAIN_SECONDS."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), DRAIN_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
